#include "common/traffic/cupti.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cmath>
#include <cstdlib>

#include "common/traffic/cupti_library.h"

namespace attention {

namespace {

/// A metric of the Range Profiler and the bytes that one count stands for: a sector of L1 and L2 is 32 bytes.
struct Metric {
  const char* name;
  int bytes;
};

/// The metrics of each Counter: the first that the chip knows is read. GB20x counts its memory's bytes under another
/// name.
const std::vector<Metric> kMetrics[kCounters] = {
    {{"dram__bytes_read.sum", 1}, {"dram__bytes_op_read.sum", 1}},
    {{"dram__bytes_write.sum", 1}, {"dram__bytes_op_write.sum", 1}},
    {{"l1tex__m_xbar2l1tex_read_sectors.sum", 32}},
    {{"l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum", 32}},
    {{"l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum", 32}},
    {{"l1tex__t_sectors_pipe_lsu_mem_local_op_ld.sum", 32}},
    {{"l1tex__t_sectors_pipe_lsu_mem_local_op_st.sum", 32}},
};

/// Once per process, and for good: the library's counterpart is not made to be followed by a second start.
void initialise_profiler(const Cupti& cupti) {
  static bool done = false;
  if (done) return;
  CUpti_Profiler_Initialize_Params params{CUpti_Profiler_Initialize_Params_STRUCT_SIZE};
  ATTN_CUPTI_CALL(cupti, cuptiProfilerInitialize, params);
  done = true;
}

/// The context current on this thread, the profiler ready for it.
CUcontext context_to_profile(const Cupti& cupti) {
  void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  const auto get =
      driver == nullptr ? nullptr : reinterpret_cast<decltype(&cuCtxGetCurrent)>(dlsym(driver, "cuCtxGetCurrent"));
  CUcontext context = nullptr;
  if (get == nullptr || get(&context) != CUDA_SUCCESS || context == nullptr)
    throw CountersUnavailable("no GPU in use: there is no CUDA context to profile", "");
  initialise_profiler(cupti);
  return context;
}

/// The part of the profiler that needs no GPU: it knows the chip's metrics, plans the passes, and turns counts into
/// values.
class Host {
 public:
  /// `availability` is the GPU's own word on its counters; empty for a chip that is not at hand. The profiler keeps its
  /// address, so it lives as long as the profiler's host object.
  Host(const Cupti& cupti, const std::string& chip, std::vector<uint8_t> availability)
      : cupti_(cupti), availability_(std::move(availability)) {
    CUpti_Profiler_Host_Initialize_Params params{CUpti_Profiler_Host_Initialize_Params_STRUCT_SIZE};
    params.profilerType = CUPTI_PROFILER_TYPE_RANGE_PROFILER;
    params.pChipName = chip.c_str();
    params.pCounterAvailabilityImage = availability_.empty() ? nullptr : availability_.data();
    ATTN_CUPTI_CALL(cupti_, cuptiProfilerHostInitialize, params);
    host_ = params.pHostObject;
    for (int counter = 0; counter < kCounters; ++counter) choose_metric(counter);
  }
  ~Host() {  // errors are not looked at in destructors: the figures are out, or the error is known
    CUpti_Profiler_Host_Deinitialize_Params params{CUpti_Profiler_Host_Deinitialize_Params_STRUCT_SIZE};
    params.pHostObject = host_;
    cupti_.cuptiProfilerHostDeinitialize(&params);
  }
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  const std::array<const Metric*, kCounters>& metrics() const { return metrics_; }  // by Counter; null: none
  std::vector<const char*>& names() { return names_; }                              // those that there are

  /// What the hardware is told to count, pass by pass.
  std::vector<uint8_t> config_image() {
    CUpti_Profiler_Host_ConfigAddMetrics_Params add{CUpti_Profiler_Host_ConfigAddMetrics_Params_STRUCT_SIZE};
    add.pHostObject = host_;
    add.ppMetricNames = names_.data();
    add.numMetrics = names_.size();
    ATTN_CUPTI_CALL(cupti_, cuptiProfilerHostConfigAddMetrics, add);
    CUpti_Profiler_Host_GetConfigImageSize_Params size{CUpti_Profiler_Host_GetConfigImageSize_Params_STRUCT_SIZE};
    size.pHostObject = host_;
    ATTN_CUPTI_CALL(cupti_, cuptiProfilerHostGetConfigImageSize, size);
    std::vector<uint8_t> image(size.configImageSize);
    CUpti_Profiler_Host_GetConfigImage_Params get{CUpti_Profiler_Host_GetConfigImage_Params_STRUCT_SIZE};
    get.pHostObject = host_;
    get.configImageSize = image.size();
    get.pConfigImage = image.data();
    ATTN_CUPTI_CALL(cupti_, cuptiProfilerHostGetConfigImage, get);
    return image;
  }

  int passes(std::vector<uint8_t>& config_image) const {
    CUpti_Profiler_Host_GetNumOfPasses_Params params{CUpti_Profiler_Host_GetNumOfPasses_Params_STRUCT_SIZE};
    params.configImageSize = config_image.size();
    params.pConfigImage = config_image.data();
    ATTN_CUPTI_CALL(cupti_, cuptiProfilerHostGetNumOfPasses, params);
    return static_cast<int>(params.numOfPasses);
  }

  /// The bytes that range number `index` of a counter data image holds.
  CounterBytes evaluate(const std::vector<uint8_t>& counter_data, size_t index) {
    std::vector<double> values(names_.size());
    CUpti_Profiler_Host_EvaluateToGpuValues_Params params{CUpti_Profiler_Host_EvaluateToGpuValues_Params_STRUCT_SIZE};
    params.pHostObject = host_;
    params.pCounterDataImage = counter_data.data();
    params.counterDataImageSize = counter_data.size();
    params.rangeIndex = index;
    params.ppMetricNames = names_.data();
    params.numMetrics = names_.size();
    params.pMetricValues = values.data();
    ATTN_CUPTI_CALL(cupti_, cuptiProfilerHostEvaluateToGpuValues, params);
    CounterBytes bytes;
    size_t next = 0;
    for (int counter = 0; counter < kCounters; ++counter) {
      if (metrics_[counter] == nullptr) continue;
      const double value = values[next++];
      if (std::isfinite(value)) bytes.values[counter] = std::llround(value) * metrics_[counter]->bytes;
    }
    return bytes;
  }

 private:
  void choose_metric(int counter) {
    for (const Metric& metric : kMetrics[counter]) {
      CUpti_Profiler_Host_GetMetricProperties_Params params{CUpti_Profiler_Host_GetMetricProperties_Params_STRUCT_SIZE};
      params.pHostObject = host_;
      params.pMetricName = metric.name;
      if (cupti_.cuptiProfilerHostGetMetricProperties(&params) != CUPTI_SUCCESS) continue;
      metrics_[counter] = &metric;
      names_.push_back(metric.name);
      return;
    }
  }

  const Cupti& cupti_;
  const std::vector<uint8_t> availability_;
  CUpti_Profiler_Host_Object* host_ = nullptr;
  std::array<const Metric*, kCounters> metrics_{};
  std::vector<const char*> names_;
};

/// The part on the GPU: while it lives, range profiling is enabled on the context.
class Target {
 public:
  Target(const Cupti& cupti, CUcontext context) : cupti_(cupti) {
    CUpti_RangeProfiler_Enable_Params params{CUpti_RangeProfiler_Enable_Params_STRUCT_SIZE};
    params.ctx = context;
    ATTN_CUPTI_CALL(cupti_, cuptiRangeProfilerEnable, params);
    object_ = params.pRangeProfilerObject;
  }
  ~Target() {
    CUpti_RangeProfiler_Disable_Params params{CUpti_RangeProfiler_Disable_Params_STRUCT_SIZE};
    params.pRangeProfilerObject = object_;
    cupti_.cuptiRangeProfilerDisable(&params);
  }
  Target(const Target&) = delete;
  Target& operator=(const Target&) = delete;
  CUpti_RangeProfiler_Object* object() const { return object_; }

 private:
  const Cupti& cupti_;
  CUpti_RangeProfiler_Object* object_ = nullptr;
};

std::string chip_name(const Cupti& cupti) {
  CUpti_Device_GetChipName_Params params{CUpti_Device_GetChipName_Params_STRUCT_SIZE};
  params.deviceIndex = 0;  // the device that the harness uses (gpu_device.cu)
  ATTN_CUPTI_CALL(cupti, cuptiDeviceGetChipName, params);
  return params.pChipName;
}

/// The first call that needs the permission to read counters.
std::vector<uint8_t> counter_availability(const Cupti& cupti, CUcontext context) {
  CUpti_Profiler_GetCounterAvailability_Params params{CUpti_Profiler_GetCounterAvailability_Params_STRUCT_SIZE};
  params.ctx = context;
  ATTN_CUPTI_CALL(cupti, cuptiProfilerGetCounterAvailability, params);
  std::vector<uint8_t> image(params.counterAvailabilityImageSize);
  params.pCounterAvailabilityImage = image.data();
  ATTN_CUPTI_CALL(cupti, cuptiProfilerGetCounterAvailability, params);
  return image;
}

/// User ranges, and the user (traffic/measure.cpp) repeats the work for each pass.
class CuptiSession final : public CounterSession {
 public:
  explicit CuptiSession(int ranges)
      : cupti_(cupti_library()),
        context_(context_to_profile(cupti_)),
        host_(cupti_, chip_name(cupti_), counter_availability(cupti_, context_)),
        config_image_(planned_image(host_)),
        target_(cupti_, context_),
        ranges_(static_cast<size_t>(ranges)),
        passes_left_(host_.passes(config_image_)) {
    CUpti_RangeProfiler_GetCounterDataSize_Params size{CUpti_RangeProfiler_GetCounterDataSize_Params_STRUCT_SIZE};
    size.pRangeProfilerObject = target_.object();
    size.pMetricNames = host_.names().data();
    size.numMetrics = host_.names().size();
    size.maxNumOfRanges = ranges_;
    size.maxNumRangeTreeNodes = static_cast<uint32_t>(ranges_);
    ATTN_CUPTI_CALL(cupti_, cuptiRangeProfilerGetCounterDataSize, size);
    counter_data_.resize(size.counterDataSize);
    CUpti_RangeProfiler_CounterDataImage_Initialize_Params image{
        CUpti_RangeProfiler_CounterDataImage_Initialize_Params_STRUCT_SIZE};
    image.pRangeProfilerObject = target_.object();
    image.counterDataSize = counter_data_.size();
    image.pCounterData = counter_data_.data();
    ATTN_CUPTI_CALL(cupti_, cuptiRangeProfilerCounterDataImageInitialize, image);

    CUpti_RangeProfiler_SetConfig_Params config{CUpti_RangeProfiler_SetConfig_Params_STRUCT_SIZE};
    config.pRangeProfilerObject = target_.object();
    config.configSize = config_image_.size();
    config.pConfig = config_image_.data();
    config.counterDataImageSize = counter_data_.size();
    config.pCounterDataImage = counter_data_.data();
    config.range = CUPTI_UserRange;
    config.replayMode = CUPTI_UserReplay;
    config.maxRangesPerPass = ranges_;
    config.numNestingLevels = 1;
    config.minNestingLevel = 1;
    config.passIndex = 0;
    config.targetNestingLevel = 1;
    ATTN_CUPTI_CALL(cupti_, cuptiRangeProfilerSetConfig, config);
  }

  void begin_pass() override {
    CUpti_RangeProfiler_Start_Params params{CUpti_RangeProfiler_Start_Params_STRUCT_SIZE};
    params.pRangeProfilerObject = target_.object();
    ATTN_CUPTI_CALL(cupti_, cuptiRangeProfilerStart, params);
  }
  bool end_pass() override {
    CUpti_RangeProfiler_Stop_Params params{CUpti_RangeProfiler_Stop_Params_STRUCT_SIZE};
    params.pRangeProfilerObject = target_.object();
    ATTN_CUPTI_CALL(cupti_, cuptiRangeProfilerStop, params);
    if (params.isAllPassSubmitted) return true;
    if (--passes_left_ <= 0) throw CountersUnavailable("the profiler asks for more passes than it planned", "");
    return false;
  }
  void begin_range(int range) override {
    const std::string name = std::to_string(range);
    CUpti_RangeProfiler_PushRange_Params params{CUpti_RangeProfiler_PushRange_Params_STRUCT_SIZE};
    params.pRangeProfilerObject = target_.object();
    params.pRangeName = name.c_str();
    ATTN_CUPTI_CALL(cupti_, cuptiRangeProfilerPushRange, params);
  }
  void end_range() override {
    CUpti_RangeProfiler_PopRange_Params params{CUpti_RangeProfiler_PopRange_Params_STRUCT_SIZE};
    params.pRangeProfilerObject = target_.object();
    ATTN_CUPTI_CALL(cupti_, cuptiRangeProfilerPopRange, params);
  }

  std::vector<CounterBytes> read() override {
    CUpti_RangeProfiler_DecodeData_Params decode{CUpti_RangeProfiler_DecodeData_Params_STRUCT_SIZE};
    decode.pRangeProfilerObject = target_.object();
    ATTN_CUPTI_CALL(cupti_, cuptiRangeProfilerDecodeData, decode);
    if (decode.numOfRangeDropped > 0)
      throw CountersUnavailable(fmt::format("the profiler dropped {} ranges", decode.numOfRangeDropped), "");
    CUpti_RangeProfiler_GetCounterDataInfo_Params info{CUpti_RangeProfiler_GetCounterDataInfo_Params_STRUCT_SIZE};
    info.pCounterDataImage = counter_data_.data();
    info.counterDataImageSize = counter_data_.size();
    ATTN_CUPTI_CALL(cupti_, cuptiRangeProfilerGetCounterDataInfo, info);
    std::vector<CounterBytes> ranges(ranges_);
    for (size_t n = 0; n < info.numTotalRanges; ++n) {
      CUpti_RangeProfiler_CounterData_GetRangeInfo_Params range{
          CUpti_RangeProfiler_CounterData_GetRangeInfo_Params_STRUCT_SIZE};
      range.pCounterDataImage = counter_data_.data();
      range.counterDataImageSize = counter_data_.size();
      range.rangeIndex = n;
      range.rangeDelimiter = "/";
      ATTN_CUPTI_CALL(cupti_, cuptiRangeProfilerCounterDataGetRangeInfo, range);
      ranges.at(static_cast<size_t>(std::atoi(range.rangeName))) = host_.evaluate(counter_data_, n);
    }
    return ranges;
  }

 private:
  static std::vector<uint8_t> planned_image(Host& host) {
    if (host.names().empty())
      throw CountersUnavailable("no counters for this chip: this CUPTI knows none that is asked for",
                                "install a newer CUDA Toolkit, and build again");
    return host.config_image();
  }

  const Cupti& cupti_;
  const CUcontext context_;
  Host host_;
  std::vector<uint8_t> config_image_, counter_data_;
  const Target target_;
  const size_t ranges_;
  int passes_left_;
};

}  // namespace

std::unique_ptr<CounterSession> open_cupti(int ranges) { return std::make_unique<CuptiSession>(ranges); }

std::vector<std::string> cupti_metrics(const std::string& chip) {
  const Host host(cupti_library(), chip, {});
  std::vector<std::string> names;
  for (const Metric* metric : host.metrics()) names.push_back(metric == nullptr ? "" : metric->name);
  return names;
}

}  // namespace attention
