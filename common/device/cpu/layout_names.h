// The members of a struct that lies in SRAM, by name: a finding says "k, row 3" and not a byte.
//
// C++20 has no reflection, but a compiler prints a template's arguments, and a pointer to a member of an object may be
// one. Where a compiler cannot take it (clang), a finding says the byte alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

namespace attention::executor {

#if defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 12

/// Room for a T that is never made: its members have addresses to be named by.
template <class T>
union NeverMade {
  char nothing;
  T value;
  static NeverMade room;
};
template <class T>
NeverMade<T> NeverMade<T>::room{};

template <auto MemberAddress>
constexpr std::string_view printed() {
  return __PRETTY_FUNCTION__;  // "... [with auto MemberAddress = (& ...::value...::k); ..."
}
template <auto MemberAddress>
constexpr std::string_view member_name() {
  const std::string_view before_end = printed<MemberAddress>().substr(0, printed<MemberAddress>().find(");"));
  return before_end.substr(before_end.rfind(':') + 1);
}

/// Pointers to the members of an aggregate of at most ten; of none where there are more.
template <class T>
constexpr auto member_pointers(T& t) {
  if constexpr (requires { T{{}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}}; }) {
    return std::tuple();
  } else if constexpr (requires { T{{}, {}, {}, {}, {}, {}, {}, {}, {}, {}}; }) {
    auto& [a, b, c, d, e, f, g, h, i, j] = t;
    return std::tuple(&a, &b, &c, &d, &e, &f, &g, &h, &i, &j);
  } else if constexpr (requires { T{{}, {}, {}, {}, {}, {}, {}, {}, {}}; }) {
    auto& [a, b, c, d, e, f, g, h, i] = t;
    return std::tuple(&a, &b, &c, &d, &e, &f, &g, &h, &i);
  } else if constexpr (requires { T{{}, {}, {}, {}, {}, {}, {}, {}}; }) {
    auto& [a, b, c, d, e, f, g, h] = t;
    return std::tuple(&a, &b, &c, &d, &e, &f, &g, &h);
  } else if constexpr (requires { T{{}, {}, {}, {}, {}, {}, {}}; }) {
    auto& [a, b, c, d, e, f, g] = t;
    return std::tuple(&a, &b, &c, &d, &e, &f, &g);
  } else if constexpr (requires { T{{}, {}, {}, {}, {}, {}}; }) {
    auto& [a, b, c, d, e, f] = t;
    return std::tuple(&a, &b, &c, &d, &e, &f);
  } else if constexpr (requires { T{{}, {}, {}, {}, {}}; }) {
    auto& [a, b, c, d, e] = t;
    return std::tuple(&a, &b, &c, &d, &e);
  } else if constexpr (requires { T{{}, {}, {}, {}}; }) {
    auto& [a, b, c, d] = t;
    return std::tuple(&a, &b, &c, &d);
  } else if constexpr (requires { T{{}, {}, {}}; }) {
    auto& [a, b, c] = t;
    return std::tuple(&a, &b, &c);
  } else if constexpr (requires { T{{}, {}}; }) {
    auto& [a, b] = t;
    return std::tuple(&a, &b);
  } else {
    return std::tuple();
  }
}

/// ", row 3" of a tile whose rows lie one behind the other.
template <class M>
std::string row_in(int64_t byte) {
  if constexpr (requires(M& tile) { tile.element[0][0]; })
    return ", row " + std::to_string(byte / static_cast<int64_t>(sizeof(std::declval<M&>().element[0])));
  return "";
}

/// "k, row 3", "k[1], row 3"; "" between the members.
template <class Layout>
std::string name_of_byte(const void* sram, int64_t byte) {
  std::string name;
  const auto look = [&](const auto* member, std::string_view called) {
    using Member = std::remove_cvref_t<decltype(*member)>;
    using One = std::remove_all_extents_t<Member>;
    const int64_t within = byte - (reinterpret_cast<const char*>(member) - static_cast<const char*>(sram)),
                  size = sizeof(One);
    if (within < 0 || within >= static_cast<int64_t>(sizeof(Member))) return;
    name = std::string(called) + (std::is_array_v<Member> ? "[" + std::to_string(within / size) + "]" : "") +
           row_in<One>(within % size);
  };
  if constexpr (std::is_aggregate_v<Layout>) {
    const auto pointers = member_pointers(*static_cast<Layout*>(const_cast<void*>(sram)));
    [&]<std::size_t... I>(std::index_sequence<I...>) {
      (look(std::get<I>(pointers), member_name<std::get<I>(member_pointers(NeverMade<Layout>::room.value))>()), ...);
    }(std::make_index_sequence<std::tuple_size_v<decltype(pointers)>>());
  }
  return name;
}

#else

template <class Layout>
std::string name_of_byte(const void*, int64_t) {
  return "";
}

#endif

}  // namespace attention::executor
