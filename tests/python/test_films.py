"""--film: the page's numbers are the report's, and a real browser plays it (skipped where there is no Chromium)."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

from need import BUILD, REPOSITORY, trace_of

SMALL = ["--device", "cpu", "--seqlen", "150", "--heads", "2", "--causal", "--thread-order", "0"]


def programs():
    """The steps of this build that run on the CPU executor."""
    for program in sorted(BUILD.glob("step[0-9][0-9]")):
        said = json.loads(subprocess.run([program, "--describe"], check=True, capture_output=True, text=True).stdout)
        if said["kind"] == "attention" and said["devices"]["cpu"]:
            yield program


def films_of(page):
    return json.loads(re.search(r'id="films">\n(.*?)\n</script>', page.read_text(encoding="utf-8"), re.S).group(1))


def together(bytes_by_tensor):
    total = {}
    for one in bytes_by_tensor:
        before = total.get(one["tensor"], (0, 0))
        total[one["tensor"]] = (before[0] + one["load"], before[1] + one["store"])
    return total


class Film(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = pathlib.Path(self.folder.name)

    def make(self, program, *flags):
        page = self.path / f"{program.name}.html"
        done = subprocess.run(
            [program, *flags, "--film", page, "--json", self.path / "report.json"], capture_output=True, text=True
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        return page, json.loads((self.path / "report.json").read_text())

    def test_bytes_are_the_reports(self):
        found = list(programs())
        self.assertTrue(found, f"no step in {BUILD}")
        for program in found:
            with self.subTest(program.name):
                page, report = self.make(program, *SMALL)
                self.assertLess(page.stat().st_size, 5_000_000)
                launches = films_of(page)[0]["launches"]
                for method in report["methods"]:
                    mine = [launch for launch in launches if launch["method"] == method["name"]]
                    counted = {
                        name: tuple(of["requested_counted_bytes"].values())
                        for name, of in method["traffic"]["by_tensor"].items()
                    }
                    self.assertEqual(together(one for launch in mine for one in launch["counted"]), counted)
                for launch in launches:
                    if len(launch["filmed"]) < launch["blocks"]:
                        continue
                    events = [
                        event
                        for block in launch["filmed"]
                        for event in block["events"]
                        if event["kind"] in ("load", "store")
                    ]
                    seen = together(
                        {"tensor": event["tensor"], "load": 0, "store": 0, event["kind"]: event["bytes"]}
                        for event in events
                    )
                    self.assertEqual(seen, together(launch["counted"]), launch["kernel"])
                self.assertTrue(
                    all(
                        re.fullmatch(r"\w+\.(cuh?|h):\d+", event["at"])
                        for launch in launches
                        for block in launch["filmed"]
                        for event in block["events"]
                    )
                )

    def test_costs_three_runs_at_most(self):
        for step in ("step04", "step05"):
            plain, filmed = (
                min(self.seconds(BUILD / step, *flags) for _ in range(3))
                for flags in ((), ("--film", self.path / "film.html"))
            )
            self.assertLess(filmed, 3 * plain, step)

    @staticmethod
    def seconds(*command):
        """Of processor time."""
        before = os.times()
        flags = ["--device", "cpu", "--thread-order", "0", "--check", "none"]
        subprocess.run([*command, *flags], check=True, capture_output=True)
        after = os.times()
        return after.children_user + after.children_system - before.children_user - before.children_system

    def test_the_playground_shows_the_readers_kernel(self):
        page, _ = self.make(BUILD / "playground", *SMALL)
        self.assertEqual([film["step"] for film in films_of(page)], ["playground"])

    def test_nothing_is_left_where_it_cannot_be_written(self):
        step = next(programs())
        for flag, name in (("--film", "no/film.html"), ("--timeline", "no/tracks.html"), ("--timeline", "tracks.txt")):
            done = subprocess.run([step, *SMALL, flag, self.path / name], capture_output=True, text=True)
            self.assertEqual(done.returncode, 2)
            self.assertEqual(len(done.stderr.splitlines()), 1)
        self.assertEqual(list(self.path.iterdir()), [])

    def test_a_pair_that_cannot_be_written_is_one_line(self):
        page, _ = self.make(BUILD / "step04", *SMALL)
        before = sorted(self.path.iterdir())
        for out in (pathlib.Path("/dev/full"), self.path / "no/both.html"):
            make = ["python3", REPOSITORY / "plots/films/make_films.py", "--pair", page, page, "--out", out]
            done = subprocess.run(make, capture_output=True, text=True)
            self.assertEqual((done.returncode, len(done.stderr.splitlines())), (2, 1), done.stderr)
            self.assertIn(f"{out}: cannot be written", done.stderr)
        self.assertEqual(sorted(self.path.iterdir()), before)


class Timeline(unittest.TestCase):
    """--timeline: each track in order, and what the four chapters say of their steps."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def tracks(self, name, *flags):
        """{(block, track): [(kind, name, begin, end)]} of a step in fp16, in cycles."""
        path = pathlib.Path(self.folder.name) / "tracks.json"
        sizes = ["--device", "cpu", "--dtype", "fp16", "--seqlen", "512", "--heads", "1", "--thread-order", "0"]
        subprocess.run(
            [BUILD / name, *sizes, "--check", "none", *flags, "--timeline", path], check=True, capture_output=True
        )
        trace = trace_of(self, path)
        self.assertIn("logical time of the CPU executor", trace["otherData"]["time"])
        threads, tracks = {}, {}
        for event in trace["traceEvents"]:
            track = (event["pid"], event["tid"])
            if event["ph"] == "M":
                threads[track] = event["args"]["name"]
            else:
                begin = round(event["ts"] * 1000)
                span = (event["cat"], event["name"], begin, begin + event["args"]["cycles"])
                tracks.setdefault((*track, threads[track]), []).append(span)
        return tracks

    def spans(self, tracks, kind, block=None):
        return [s for (pid, _, _), all in tracks.items() for s in all if s[0] == kind and block in (None, pid)]

    @staticmethod
    def shared(some, others):
        return sum(max(0, min(a[3], b[3]) - max(a[2], b[2])) for a in some for b in others)

    def test_step04_waits_for_its_loads(self):
        tracks = self.tracks("step04")
        loads, products = self.spans(tracks, "load", 1), self.spans(tracks, "product", 1)
        self.assertTrue(loads and products)
        self.assertEqual(self.shared(loads, products), 0, "a block's products ran during its loads")
        self.assertEqual(self.spans(tracks, "copy"), [])

    def test_step06_copies_travel_during_products(self):
        tracks = self.tracks("step06")
        self.assertGreater(self.shared(self.spans(tracks, "copy", 1), self.spans(tracks, "product", 1)), 0)
        self.assertEqual(self.spans(tracks, "load"), [])

    def test_step07_twins_hide_each_others_softmax(self):
        tracks = self.tracks("step07")
        self.assertEqual({pid for pid, _, _ in tracks}, {1, 2})
        self.assertGreater(self.shared(self.spans(tracks, "softmax", 1), self.spans(tracks, "product", 2)), 0)

    def test_step08_takes_turns(self):
        tracks = self.tracks("step08", "--head-dim", "128", "--threads", "1")
        self.assertEqual(
            {name.split(", ")[1].split(":")[0] for *_, name in tracks if "warp" in name and ", " in name},
            {"producer", "consumer 1", "consumer 2"},
        )
        turns = [
            [s for (*_, name), all in tracks.items() if name == f"warp {w}, consumer {w // 4}: products" for s in all]
            for w in (4, 8)
        ]
        self.assertEqual(self.shared(*turns), 0, "one tensor core ran two products at once")
        softmax = [
            s for (*_, name), all in tracks.items() if name == "warp 4, consumer 1" for s in all if s[0] == "softmax"
        ]
        self.assertGreater(self.shared(softmax, turns[1]), 0)

    def test_stored_pictures_are_todays(self):
        folder = pathlib.Path(self.folder.name)
        stored = {path.name: path.read_text() for path in (REPOSITORY / "docs/pictures").glob("timeline_*.svg")}
        self.assertTrue(stored)
        for name in stored:
            (folder / name).touch()
        for stamps in (REPOSITORY / "docs/pictures").glob("timeline_*.stamps"):
            shutil.copy(stamps, folder)
        make = ["python3", REPOSITORY / "plots/films/make_films.py", "--folder", BUILD, "--pictures", folder]
        subprocess.run(make, check=True)
        for name, text in stored.items():
            self.assertEqual((folder / name).read_text() == text, True, f"{name}: make pictures draws it anew")


class Browser(Film):
    """In Chromium, headless."""

    test_bytes_are_the_reports = test_nothing_is_left_where_it_cannot_be_written = test_costs_three_runs_at_most = None
    test_a_pair_that_cannot_be_written_is_one_line = None
    test_the_playground_shows_the_readers_kernel = None

    @classmethod
    def setUpClass(cls):
        try:
            from selenium import webdriver
        except ImportError:
            raise unittest.SkipTest("python3-selenium is not installed") from None
        options = webdriver.ChromeOptions()
        for flag in ("--headless=new", "--no-sandbox", "--disable-gpu"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        try:
            cls.browser = webdriver.Chrome(options=options)
        except Exception as error:
            raise unittest.SkipTest(f"no Chromium: {str(error).splitlines()[0]}") from None
        cls.addClassCleanup(cls.browser.quit)

    def resize(self, width):
        self.browser.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False},
        )

    def prefer(self, **features):
        wanted = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": wanted})

    def key(self, name):
        from selenium.webdriver.common.by import By

        self.browser.find_element(By.TAG_NAME, "body").send_keys(name)

    def run_js(self, text):
        return self.browser.execute_script(text)

    def last_row(self, film=0):
        """The counters of a film: 'this block' and 'all blocks', loaded and stored."""
        return self.run_js(
            f"return [...document.querySelectorAll('section.film')[{film}].querySelectorAll('tr.total td')].slice(1)"
            ".map((cell) => Number(cell.textContent.replaceAll(',', '')))"
        )

    def assert_clean(self, page):
        self.assertEqual(
            [entry for entry in self.browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")], []
        )
        asked = [json.loads(entry["message"])["message"] for entry in self.browser.get_log("performance")]
        sent = [one["params"] for one in asked if one["method"] == "Network.requestWillBeSent"]
        urls = {
            one["request"]["url"] for one in sent if one["documentURL"] == page.as_uri()
        }  # not the browser's own first page's
        self.assertEqual(urls, {page.as_uri()})

    def test_plays_by_keyboard_alone(self):
        from selenium.webdriver.common.keys import Keys
        from selenium.webdriver.support.ui import WebDriverWait

        # One block of each launch, so that the counters of the block end at the launch's own.
        page, report = self.make(
            next(program for program in programs() if program.name == "step04"),
            "--device",
            "cpu",
            "--seqlen",
            "64",
            "--heads",
            "1",
        )
        self.browser.get(page.as_uri())
        self.key(Keys.ARROW_RIGHT)
        self.assertEqual(self.run_js("return document.getElementById('position').value"), "1")
        self.key(Keys.HOME)
        self.run_js("document.querySelector('select').value = '100'")
        self.key(Keys.SPACE)
        done = "return document.getElementById('position').value === document.getElementById('position').max"
        WebDriverWait(self.browser, 20).until(lambda _: self.run_js(done))
        loads, stores = report["methods"][-1]["traffic"]["requested_counted_bytes"].values()
        self.assertEqual(self.last_row(), [loads, stores, loads, stores])
        self.key("n")
        self.assert_clean(page)

    def test_fits_and_can_be_read(self):
        page, _ = self.make(next(program for program in programs() if program.name == "step04"), *SMALL)
        for width in (390, 1440):
            for scheme in ("light", "dark"):
                self.resize(width)
                self.prefer(prefers_color_scheme=scheme, prefers_reduced_motion="reduce")
                self.browser.get(page.as_uri())
                self.run_js("show(longest())")
                self.assertLessEqual(self.run_js("return document.documentElement.scrollWidth"), width)
                self.assertEqual(self.run_js("return document.getAnimations().length"), 0)
                worst = self.run_js(CONTRAST)
                self.assertGreaterEqual(worst["ratio"], 4.5, f"{scheme}: {worst}")
        self.assert_clean(page)

    def test_pair_in_step(self):
        pages = [self.make(program, *SMALL)[0] for program in programs() if program.name in ("step02", "step04")]
        both = self.path / "both.html"
        subprocess.run(
            ["python3", REPOSITORY / "plots/films/make_films.py", "--pair", *pages, "--out", both], check=True
        )
        self.browser.get(both.as_uri())
        self.run_js("show(5)")
        self.assertEqual(self.run_js("return shown.map((one) => one.position)"), [5, 5])
        self.run_js("show(longest())")
        for n, film in enumerate(films_of(both)):
            counted = film["launches"][-1]["counted"]
            self.assertEqual(self.last_row(n)[2:], [sum(one[way] for one in counted) for way in ("load", "store")])
        self.assert_clean(both)

    def test_gallery(self):
        make = ["python3", REPOSITORY / "plots/films/make_films.py", "--folder", BUILD, "--out", self.path / "films"]
        subprocess.run([*make, "--seqlen", "64", "--heads", "1"], check=True, capture_output=True)
        linked = re.findall(r'href="(.*?)"', (self.path / "films/index.html").read_text(encoding="utf-8"))
        made = sorted(page.name for page in (self.path / "films").iterdir())
        self.assertEqual(sorted([*linked, "index.html"]), made)
        self.assertLessEqual({f"{program.name}.html" for program in programs()}, set(made))
        self.resize(390)
        for name in made:
            page = self.path / "films" / name
            self.browser.get(page.as_uri())
            if name != "index.html":
                self.run_js("for (let n = 0; n <= longest(); ++n) show(n)")
            self.assertLessEqual(self.run_js("return document.documentElement.scrollWidth"), 390, name)
            self.assert_clean(page)

    def test_timeline_page(self):
        page = self.path / "tracks.html"
        subprocess.run([BUILD / "step08", *SMALL, "--timeline", page], check=True, capture_output=True)
        for width, scheme in ((390, "light"), (1440, "dark")):
            self.resize(width)
            self.prefer(prefers_color_scheme=scheme)
            self.browser.get(page.as_uri())
            self.assertLessEqual(self.run_js("return document.documentElement.scrollWidth"), width)
            self.assertGreater(self.run_js("return document.querySelectorAll('.timeline rect title').length"), 20)
            worst = self.run_js(CONTRAST)
            self.assertGreaterEqual(worst["ratio"], 4.5, f"{scheme}: {worst}")
        self.assert_clean(page)

    def test_edited_score(self):
        page, _ = self.make(next(program for program in programs() if program.name == "step04"), *SMALL)
        self.browser.get(page.as_uri())
        got = self.run_js("return recurrence([1, 3, 2, 5], [[10], [20], [30], [40]], 2)")  # chapter 4's four numbers
        self.assertAlmostEqual(got["exact"][0], 36.880566, places=6)
        self.assertAlmostEqual(got["tiles"][-1]["o"][0], got["exact"][0], places=12)
        self.assertAlmostEqual(got["lse"], 5.185182, places=6)
        before = self.run_js("return document.querySelector('.row-view table').textContent")
        self.run_js(
            "const score = document.querySelectorAll('.row-view input')[1];"
            "score.value = 9; score.dispatchEvent(new Event('input'))"
        )
        self.assertNotEqual(self.run_js("return document.querySelector('.row-view table').textContent"), before)


# The lowest contrast between a text's colour and the nearest background behind it (WCAG 2.1, 1.4.3).
CONTRAST = """
const channel = (x) => (x /= 255) <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4;
const luminance = (colour) => {
  const [r, g, b] = colour.match(/[\\d.]+/g).map(Number);
  return 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
};
let worst = {ratio: 99};
for (const one of document.querySelectorAll('main *:not(title)')) {
  if (![...one.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim())) continue;
  const style = getComputedStyle(one);
  let behind = one;
  while (behind && /, 0\\)$|transparent/.test(getComputedStyle(behind).backgroundColor)) behind = behind.parentElement;
  const text = luminance(one instanceof SVGElement ? style.fill : style.color);
  const back = luminance(getComputedStyle(behind ?? document.body).backgroundColor);
  const ratio = (Math.max(text, back) + 0.05) / (Math.min(text, back) + 0.05);
  if (ratio < worst.ratio) worst = {ratio, text: one.textContent.slice(0, 40)};
}
return worst;
"""

if __name__ == "__main__":
    unittest.main()
