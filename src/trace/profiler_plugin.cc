#include "trace/profiler_plugin.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <cstdarg>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "core/log.h"
#include "core/mutex.h"

namespace ropewalk::trace {
namespace {

constexpr int kNewest = 6;
constexpr int kOldest = 1;

// Kinds of events, by bit of the mask.
constexpr unsigned kGroup = 0;
constexpr unsigned kCollective = 1;
constexpr unsigned kPointToPoint = 2;
constexpr unsigned kKernelChannel = 6;
constexpr unsigned kGroupApi = 8;
constexpr unsigned kCollectiveApi = 9;
constexpr unsigned kPointToPointApi = 10;
constexpr int kKernelChannelStop = 22;

using Logger = void (*)(int level, unsigned long subsystems, const char* file, int line,
                        const char* format, ...);
using InitV1 = int (*)(void** context, int* mask);
using InitV4 = int (*)(void** context, int* mask, const char* name, std::uint64_t id, int num_nodes,
                       int num_ranks, int rank, Logger logger);
using InitV5 = int (*)(void** context, std::uint64_t id, int* mask, const char* name, int num_nodes,
                       int num_ranks, int rank, Logger logger);

// The plugin's own lines, by NCCL's numbers of levels: those of warnings as warnings, the rest for
// DEBUG=INFO and TRACE.
__attribute__((format(printf, 5, 6))) void log_line(int level, unsigned long /*subsystems*/,
                                                    const char* /*file*/, int /*line*/,
                                                    const char* format, ...) {
  std::array<char, 1024> text{};
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text.data(), text.size(), format, arguments);
  va_end(arguments);
  if (level <= static_cast<int>(log::Level::kNone)) return;
  if (level <= static_cast<int>(log::Level::kWarn)) {
    log::warn("profiler plugin: {}", text.data());
  } else if (level == static_cast<int>(log::Level::kTrace)) {
    log::trace(log::kInit, "profiler plugin: {}", text.data());
  } else {
    log::info(log::kInit, "profiler plugin: {}", text.data());
  }
}

// Version 1 has numbers where later ones have texts.
template <std::size_t N>
std::uint8_t number_of(const std::array<std::string_view, N>& names, std::string_view name,
                       std::uint8_t otherwise) {
  for (std::size_t i = 0; i < N; ++i) {
    if (names[i] == name) return static_cast<std::uint8_t>(i);
  }
  return otherwise;
}
constexpr std::array<std::string_view, 8> kFunctions = {
    "Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce", "SendRecv", "Send", "Recv"};
constexpr std::array<std::string_view, 12> kTypes = {
    "ncclInt8",    "ncclUint8",    "ncclInt32",      "ncclUint32",
    "ncclInt64",   "ncclUint64",   "ncclFloat16",    "ncclFloat32",
    "ncclFloat64", "ncclBfloat16", "ncclFloat8e4m3", "ncclFloat8e5m2"};
constexpr std::array<std::string_view, 7> kAlgorithms = {
    "TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT"};
constexpr std::array<std::string_view, 3> kProtocols = {"LL", "LL128", "SIMPLE"};

// NCCL's texts are literals, and plugins keep their addresses: so these stay, too. There are few.
const char* kept(const std::string& text) {
  static Mutex& mutex = *new Mutex();
  static std::set<std::string>& texts = *new std::set<std::string>();
  const Lock lock(mutex);
  return texts.insert(text).first->c_str();
}

constexpr std::size_t kMostBytes = 128;

}  // namespace

// As profiler_v1.h to profiler_v6.h of NCCL lay it out: the kind at 0 (a byte up to version 4, then
// eight), the parent at 8, the rank at 16, then what the kind has.
class ProfilerPlugin::Context::Descriptor {
 public:
  Descriptor(int version, unsigned kind, void* parent, int rank) : version_(version) {
    if (version <= 4) {
      put(0, static_cast<std::uint8_t>(1U << kind));
    } else {
      put(0, std::uint64_t{1} << kind);
    }
    put(8, parent);
    put(16, rank);
  }
  template <typename T>
  void put(std::size_t offset, T value) {
    std::memcpy(bytes_.data() + offset, &value, sizeof value);
  }
  void put(std::size_t offset, const std::string& text) { put(offset, kept(text)); }
  // Up to version 3: whose operation it is.
  void put_communicator(const Communicator& communicator) {
    if (version_ > 3) return;
    put(24, communicator.name);
    put(32, communicator.id);
  }
  void put_collective(const ProfiledOperation& operation) {
    const std::size_t at = version_ <= 3 ? 40 : 24;  // the number; then the others
    put(at, operation.number);
    put(at + 32, operation.count);
    put(at + 40, operation.root_or_peer);
    constexpr std::uint8_t kOne = 1;  // channel, and warp
    if (version_ == 1) {
      put(48, number_of(kFunctions, operation.function, 4));
      put(84, number_of(kTypes, operation.type, 1));
      put(104, kOne);
      put(105, kOne);
      put(106, number_of(kAlgorithms, operation.algorithm, 1));
      put(107, number_of(kProtocols, operation.protocol, 2));
      return;
    }
    put(at + 8, operation.function);
    put(at + 48, operation.type);
    // Version 2 has the bytes that move before the channels.
    const std::size_t channels = version_ == 2 ? 104 : at + 56;
    put(channels, kOne);
    put(channels + 1, kOne);
    put(channels + 8, operation.algorithm);
    put(channels + 16, operation.protocol);
  }
  void put_message(const ProfiledOperation& operation) {
    const std::size_t at = version_ <= 3 ? 40 : 24;
    if (version_ == 1) {
      put(at, number_of(kFunctions, operation.function, 6));
      put(at + 16, number_of(kTypes, operation.type, 1));
    } else {
      put(at, operation.function);
      put(at + 16, operation.type);
    }
    put(at + 24, operation.count);
    put(at + 32, operation.root_or_peer);
    if (version_ >= 4) put(at + 36, std::uint8_t{1});  // channels
  }
  [[nodiscard]] void* data() const noexcept {
    return const_cast<std::byte*>(bytes_.data());  // plugins only read it
  }

 private:
  int version_;
  alignas(8) std::array<std::byte, kMostBytes> bytes_{};
};

std::shared_ptr<ProfilerPlugin> ProfilerPlugin::load(const std::string& name) {
  std::string tried;
  for (const std::string& file : {name, fmt::format("libnccl-profiler-{}.so", name)}) {
    void* handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
      const char* reason = dlerror();
      tried += fmt::format("{}{}", tried.empty() ? "" : "; ", reason == nullptr ? file : reason);
      continue;
    }
    for (int version = kNewest; version >= kOldest; --version) {
      const void* table = dlsym(handle, fmt::format("ncclProfiler_v{}", version).c_str());
      if (table == nullptr) continue;
      return std::shared_ptr<ProfilerPlugin>(
          new ProfilerPlugin(handle, static_cast<const Table*>(table), version));
    }
    dlclose(handle);
    throw Error(Errc::kSystem, "{} has no profiler for NCCL of versions {} to {}", file, kOldest,
                kNewest);
  }
  throw Error(Errc::kSystem, "the profiler plugin {} was not loaded: {}", name, tried);
}

ProfilerPlugin::~ProfilerPlugin() { dlclose(handle_); }

std::string ProfilerPlugin::name() const { return table_->name == nullptr ? "" : table_->name; }

ProfilerPlugin::Context::Context(std::shared_ptr<ProfilerPlugin> plugin,
                                 const Communicator& communicator)
    : plugin_(std::move(plugin)), communicator_(communicator) {
  const auto init = [&] {
    const Communicator& c = communicator_;
    if (plugin_->version_ <= 3) {
      return reinterpret_cast<InitV1>(plugin_->table_->init)(&context_, &mask_);
    }
    if (plugin_->version_ == 4) {
      return reinterpret_cast<InitV4>(plugin_->table_->init)(
          &context_, &mask_, c.name.c_str(), c.id, c.num_nodes, c.num_ranks, c.rank, log_line);
    }
    return reinterpret_cast<InitV5>(plugin_->table_->init)(
        &context_, c.id, &mask_, c.name.c_str(), c.num_nodes, c.num_ranks, c.rank, log_line);
  };
  if (const int result = init(); result != 0) {
    throw Error(Errc::kSystem, "the profiler plugin {} refused: init returned {}", plugin_->name(),
                result);
  }
}

ProfilerPlugin::Context::~Context() {
  if (const int result = plugin_->table_->finalize(context_); result != 0) {
    log::warn("the profiler plugin {}: finalize returned {}", plugin_->name(), result);
  }
}

void* ProfilerPlugin::Context::start(const Descriptor& descriptor) {
  void* event = nullptr;
  if (plugin_->table_->start_event(context_, &event, descriptor.data()) != 0) return nullptr;
  return event;
}

void ProfilerPlugin::Context::stop(void*& event) {
  if (event != nullptr) (void)plugin_->table_->stop_event(std::exchange(event, nullptr));
}

ProfilerPlugin::Context::Events ProfilerPlugin::Context::begin(const ProfiledOperation& operation) {
  const int version = plugin_->version_;
  Events events;
  const auto make = [&](unsigned kind, void* parent) {
    return Descriptor(version, kind, parent, communicator_.rank);
  };
  const unsigned group = version >= 5 ? kGroupApi : kGroup;
  if (follows(group)) {
    Descriptor descriptor = make(group, nullptr);
    if (version >= 5) descriptor.put(28, 1);  // depth
    events.group = start(descriptor);
  }
  void* parent = events.group;
  const unsigned api = operation.message ? kPointToPointApi : kCollectiveApi;
  if (version >= 5 && follows(api)) {
    Descriptor descriptor = make(api, parent);
    descriptor.put(24, operation.function);
    descriptor.put(32, operation.count);
    descriptor.put(40, operation.type);
    if (!operation.message) descriptor.put(48, operation.root_or_peer);
    events.api = start(descriptor);
    parent = events.api;
  }
  const unsigned kind = operation.message ? kPointToPoint : kCollective;
  if (!follows(kind)) return events;
  Descriptor descriptor = make(kind, parent);
  descriptor.put_communicator(communicator_);
  if (operation.message) {
    descriptor.put_message(operation);
  } else {
    descriptor.put_collective(operation);
  }
  events.operation = start(descriptor);
  return events;
}

void ProfilerPlugin::Context::begin_kernel(Events& events, std::uint64_t ns) {
  const int version = plugin_->version_;
  if (version < 3 || events.operation == nullptr || !follows(kKernelChannel)) return;
  Descriptor descriptor(version, kKernelChannel, events.operation, communicator_.rank);
  if (version >= 4) descriptor.put(32, ns);  // behind the channel, which is 0
  events.kernel = start(descriptor);
}

void ProfilerPlugin::Context::end_kernel(Events& events, std::uint64_t ns) {
  if (events.kernel == nullptr) return;
  if (plugin_->version_ >= 4) {
    (void)plugin_->table_->record_state(events.kernel, kKernelChannelStop, &ns);
  }
  stop(events.kernel);
}

void ProfilerPlugin::Context::end(Events& events) {
  stop(events.kernel);
  stop(events.operation);
  stop(events.api);
  stop(events.group);
}

}  // namespace ropewalk::trace
