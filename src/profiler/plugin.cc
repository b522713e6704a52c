// The six tables that NCCL looks for (abi.h). No function throws, and whatever goes wrong here is
// logged: the job is not disturbed.
//
// Each communicator's records are written to the file of the setting TRACE_FILE when NCCL finalizes
// it or the program ends, and at the signal of TRACE_SIGNAL; `ropewalk status` is told of them
// meanwhile (endpoint.h), unless STATUS=0. TRACE_RECORDS says how many are kept, and TRACE=off
// turns all of it off.
#include <algorithm>
#include <atomic>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/log.h"
#include "core/settings.h"
#include "profiler/abi.h"
#include "profiler/descriptor.h"
#include "profiler/endpoint.h"
#include "profiler/recorder.h"
#include "profiler/report_file.h"

namespace ropewalk::profiler {
namespace {

constexpr char kName[] = "Ropewalk";

// Runs it; what is thrown is logged.
template <typename Body>
void guarded(const char* what, Body&& body) noexcept {
  try {
    std::forward<Body>(body)();
  } catch (const std::exception& error) {
    log::warn("profiler, {}: {}", what, error.what());
  }
}

struct Context;

// NCCL's handle of an event: of an operation, or of a part of one.
struct Handle {
  Context* context = nullptr;
  std::shared_ptr<Context> kept;  // of a part: it may end after its communicator
  std::atomic<Recorder::Id> record{0};
};

// NCCL's handle of a communicator is a shared_ptr to one.
struct Context {
  Context(int interface, const Recorder::Communicator& communicator, std::size_t capacity,
          std::string pattern)
      : version(interface),
        recorder(communicator, capacity),
        file(std::move(pattern)),
        operations(std::max(2 * capacity, kFewestHandles)) {
    for (Handle& handle : operations) handle.context = this;
  }

  const int version;
  Recorder recorder;
  const std::string file;
  // In turns. NCCL may name an operation as parent long after it has stopped its event, so the
  // handles stay; of one that has been taken again the parts go to the wrong record.
  std::vector<Handle> operations;
  static constexpr std::size_t kFewestHandles = 16384;
};

Config load_settings() {
  try {
    return Config::load();
  } catch (const Error&) {
    log::configure("WARN", "", "");  // nobody else tells of a wrong setting
    throw;
  }
}

int init(int version, void** out, int* mask, const Recorder::Communicator& communicator) noexcept {
  *out = nullptr;
  *mask = 0;
  guarded("init", [&] {
    const Config config = load_settings();
    log::configure(config.text(Setting::kDebug), config.text(Setting::kDebugSubsys),
                   config.text(Setting::kDebugFile));
    if (config.text(Setting::kTrace) == "off") return;
    const std::string& file = config.text(Setting::kTraceFile);
    const bool asked = config.flag(Setting::kStatus);
    if (file.empty() && !asked) {
      log::warn("profiler: nothing is recorded: ROPEWALK_TRACE_FILE names no file, STATUS is off");
      return;
    }
    auto context = std::make_unique<std::shared_ptr<Context>>(std::make_shared<Context>(
        version, communicator, static_cast<std::size_t>(config.integer(Setting::kTraceRecords)),
        file));
    Endpoint::instance().add((*context)->recorder, file);
    if (asked) {
      guarded("`ropewalk status` cannot ask this process",
              [&] { Endpoint::instance().listen(config.text(Setting::kTraceSignal)); });
    }
    *mask = static_cast<int>(abi::kCollective | abi::kPointToPoint | abi::kProxyOperation |
                             abi::kKernelChannel);
    *out = context.release();
  });
  return abi::kSuccess;
}

template <int kVersion>
int init_v1(void** context, int* mask) {
  return init(kVersion, context, mask, {});
}
int init_v4(void** context, int* mask, const char* /*name*/, std::uint64_t id, int /*num_nodes*/,
            int num_ranks, int rank, abi::Logger /*logger*/) {
  return init(4, context, mask, {id, rank, num_ranks});
}
template <int kVersion>
int init_v5(void** context, std::uint64_t id, int* mask, const char* /*name*/, int /*num_nodes*/,
            int num_ranks, int rank, abi::Logger /*logger*/) {
  return init(kVersion, context, mask, {id, rank, num_ranks});
}

int start_event(void* opaque, void** event, const void* descriptor) {
  *event = nullptr;
  if (opaque == nullptr || descriptor == nullptr) return abi::kSuccess;
  guarded("startEvent", [&] {
    const std::shared_ptr<Context>& context = *static_cast<std::shared_ptr<Context>*>(opaque);
    const Event told = read_descriptor(context->version, descriptor);
    if (told.operation.has_value()) {
      const Recorder::Id id = context->recorder.begin(*told.operation);
      Handle& handle = context->operations[id % context->operations.size()];
      handle.record = id;
      *event = &handle;
    } else if ((told.kind == abi::kKernelChannel || told.kind == abi::kProxyOperation) &&
               told.parent != nullptr) {
      const auto* parent = static_cast<const Handle*>(told.parent);
      auto part = std::make_unique<Handle>();
      part->context = context.get();
      part->kept = context;
      part->record = parent->record.load();
      context->recorder.start_part(part->record, told.gpu_start);
      *event = part.release();
    }
  });
  return abi::kSuccess;
}

int stop_event(void* opaque) {
  if (opaque == nullptr) return abi::kSuccess;
  guarded("stopEvent", [&] {
    auto* handle = static_cast<Handle*>(opaque);
    if (handle->kept == nullptr) return;  // enqueued; its parts come later
    const std::unique_ptr<Handle> owner(handle);
    handle->context->recorder.stop_part(handle->record);
  });
  return abi::kSuccess;
}

int record_state(void* opaque, int state, const void* arguments) {
  if (opaque == nullptr) return abi::kSuccess;
  guarded("recordEventState", [&] {
    auto* handle = static_cast<Handle*>(opaque);
    const std::optional<std::uint64_t> stop =
        read_gpu_stop(handle->context->version, state, arguments);
    if (stop.has_value()) handle->context->recorder.stop_on_gpu(handle->record, *stop);
  });
  return abi::kSuccess;
}

int finalize(void* opaque) {
  if (opaque == nullptr) return abi::kSuccess;
  guarded("finalize", [&] {
    const std::unique_ptr<std::shared_ptr<Context>> owner(
        static_cast<std::shared_ptr<Context>*>(opaque));
    const Context& context = **owner;
    Endpoint::instance().remove(context.recorder);
    if (!context.file.empty()) write_report(context.recorder, context.file);
  });
  return abi::kSuccess;
}

}  // namespace

// Tables are constants, which have no linkage by themselves.
#define RW_PROFILER_TABLE(version, type, function)                                              \
  extern "C" {                                                                                  \
  extern __attribute__((visibility("default"))) const abi::Table<abi::type>                     \
      ncclProfiler_v##version;                                                                  \
  const abi::Table<abi::type> ncclProfiler_v##version = {kName,      function,     start_event, \
                                                         stop_event, record_state, finalize};   \
  }

RW_PROFILER_TABLE(1, InitV1, init_v1<1>)
RW_PROFILER_TABLE(2, InitV1, init_v1<2>)
RW_PROFILER_TABLE(3, InitV1, init_v1<3>)
RW_PROFILER_TABLE(4, InitV4, init_v4)
RW_PROFILER_TABLE(5, InitV5, init_v5<5>)
RW_PROFILER_TABLE(6, InitV5, init_v5<6>)

#undef RW_PROFILER_TABLE

}  // namespace ropewalk::profiler
