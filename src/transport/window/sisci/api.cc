#include "transport/window/sisci/api.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <map>
#include <mutex>

namespace ropewalk::transport::window::sisci {
namespace {

// As libraries export them: for programs without threads, with threads, and plain.
constexpr std::array<std::string_view, 3> kPrefixes = {"_SISCI_PUBLIC_FUNC_ST_",
                                                       "_SISCI_PUBLIC_FUNC_MT_", ""};

void* symbol(void* handle, std::string_view prefix, std::string_view name) {
  return dlsym(handle, fmt::format("{}SCI{}", prefix, name).c_str());
}

struct Opened {
  pid_t pid = 0;
  std::weak_ptr<const Library> library;
};

}  // namespace

std::string Library::load() {
  std::string_view prefix;
  bool found = false;
  for (const std::string_view candidate : kPrefixes) {
    if (symbol(handle_, candidate, "Initialize") == nullptr) continue;
    prefix = candidate;
    found = true;
    break;
  }
  if (!found) return "it has no function SCIInitialize";
  if (symbol(handle_, prefix, "CreateDataInterrupt") == nullptr) {
    return "it is of the first version of the API, the second is needed";
  }
  std::string missing;
  const auto load_function = [&](auto& function, std::string_view name) {
    void* const address = symbol(handle_, prefix, name);
    if (address == nullptr) missing = fmt::format("it has no function SCI{}", name);
    function = reinterpret_cast<std::decay_t<decltype(function)>>(address);
  };
#define RW_LOAD(name) load_function(functions_.name, #name)
  RW_LOAD(Initialize);
  RW_LOAD(Open);
  RW_LOAD(Close);
  RW_LOAD(GetLocalNodeId);
  RW_LOAD(Query);
  RW_LOAD(GetErrorString);
  RW_LOAD(CreateSegment);
  RW_LOAD(PrepareSegment);
  RW_LOAD(SetSegmentAvailable);
  RW_LOAD(SetSegmentUnavailable);
  RW_LOAD(RemoveSegment);
  RW_LOAD(MapLocalSegment);
  RW_LOAD(RegisterSegmentMemory);
  RW_LOAD(ConnectSegment);
  RW_LOAD(DisconnectSegment);
  RW_LOAD(MapRemoteSegment);
  RW_LOAD(UnmapSegment);
  RW_LOAD(GetRemoteSegmentSize);
  RW_LOAD(CreateMapSequence);
  RW_LOAD(RemoveSequence);
  RW_LOAD(StartSequence);
  RW_LOAD(CheckSequence);
  RW_LOAD(Flush);
  RW_LOAD(MemCpy);
  RW_LOAD(CreateDMAQueue);
  RW_LOAD(RemoveDMAQueue);
  RW_LOAD(StartDmaTransfer);
  RW_LOAD(StartDmaTransferMem);
  RW_LOAD(DMAQueueState);
  RW_LOAD(AbortDMAQueue);
  RW_LOAD(CreateDataInterrupt);
  RW_LOAD(RemoveDataInterrupt);
  RW_LOAD(WaitForDataInterrupt);
  RW_LOAD(ConnectDataInterrupt);
  RW_LOAD(DisconnectDataInterrupt);
  RW_LOAD(TriggerDataInterrupt);
  if (!missing.empty()) return missing;
  RW_LOAD(AttachPhysicalMemory);  // is not needed
#undef RW_LOAD

  const auto load_flag = [&](unsigned& flag, std::string_view name) {
    flag = constant(name).value_or(flag);
  };
  load_flag(flags_.use_callback, "SCI_FLAG_USE_CALLBACK");
  load_flag(flags_.empty, "SCI_FLAG_EMPTY");
  load_flag(flags_.lock_user_memory, "SCI_FLAG_LOCK_USER_MEM");
  load_flag(flags_.cuda_buffer, "SCI_FLAG_CUDA_BUFFER");
  load_flag(flags_.dma_read, "SCI_FLAG_DMA_READ");
  load_flag(flags_.fixed_map_address, "SCI_FLAG_FIXED_MAP_ADDR");
  load_flag(flags_.force_disconnect, "SCI_FLAG_FORCE_DISCONNECT");
  load_flag(flags_.force_remove, "SCI_FLAG_FORCE_REMOVE");
  load_flag(flags_.block_read, "SCI_FLAG_BLOCK_READ");
  load_flag(flags_.flush_cpu_buffers_only, "SCI_FLAG_FLUSH_CPU_BUFFERS_ONLY");
  load_flag(flags_.infinite_timeout, "SCI_INFINITE_TIMEOUT");

  // Once per process, and the program, or this plugin before it was unloaded, may have done it.
  Status status = opens();
  if (status == Status::kOk) return {};
  status = Status::kUnset;
  functions_.Initialize(0, &status);
  if (status != Status::kOk) return fmt::format("SCIInitialize: {}", words(status));
  // Initializing may succeed where there is no driver; opening does not.
  status = opens();
  if (status != Status::kOk) {
    return fmt::format("SCIOpen: {}; is the driver of the adapters loaded?", words(status));
  }
  return {};
}

Status Library::opens() const {
  Descriptor descriptor = nullptr;
  Status status = Status::kUnset;
  functions_.Open(&descriptor, 0, &status);
  if (status == Status::kOk) {
    Status closed = Status::kUnset;
    functions_.Close(descriptor, 0, &closed);
  }
  return status;
}

Library::Found Library::open(const std::string& file) {
  // Initializing is once per process. A forked child is another process and initializes again.
  static std::mutex mutex;
  static std::map<std::string, Opened> opened;
  const std::lock_guard lock(mutex);
  Opened& known = opened[file];
  if (known.pid == getpid()) {
    if (std::shared_ptr<const Library> library = known.library.lock()) return {library, {}};
  }
  // It stays: it may have threads of its own, and is never terminated, which would end it for
  // others that use it in this process.
  void* const handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (handle == nullptr) {
    const char* reason = dlerror();
    return {nullptr, fmt::format("{} was not found ({})", file,
                                 reason == nullptr ? "no reason given" : reason)};
  }
  std::shared_ptr<Library> library(new Library(handle));
  if (std::string why_not = library->load(); !why_not.empty()) {
    return {nullptr, fmt::format("{} cannot be used: {}", file, why_not)};
  }
  known = {getpid(), library};
  return {library, {}};
}

Library::~Library() { dlclose(handle_); }

std::optional<unsigned> Library::constant(std::string_view name) const {
  const void* const object = dlsym(handle_, fmt::format("_SISCI_PUBLIC_CONST_{}", name).c_str());
  if (object == nullptr) return std::nullopt;
  return *static_cast<const unsigned*>(object);
}

std::optional<unsigned> Library::ask_adapter(unsigned adapter, std::string_view what,
                                             unsigned port) const {
  const std::optional<unsigned> command = constant("SCI_Q_ADAPTER");
  const std::optional<unsigned> subcommand = constant(fmt::format("SCI_Q_ADAPTER_{}", what));
  if (!command || !subcommand) return std::nullopt;
  unsigned answer = 0;
  AdapterQuery query{adapter, port, *subcommand, &answer};
  Status status = Status::kUnset;
  functions_.Query(*command, &query, 0, &status);
  if (status != Status::kOk) return std::nullopt;
  return answer;
}

std::size_t Library::dma_alignment(unsigned adapter) const {
  const std::optional<unsigned> command = constant("SCI_Q_DMA");
  const std::optional<unsigned> subcommand = constant("SCI_Q_DMA_CAPABILITIES");
  if (!command || !subcommand) return 1;
  DmaCapabilities capabilities;
  DmaQuery query{adapter, *subcommand, &capabilities};
  Status status = Status::kUnset;
  functions_.Query(*command, &query, 0, &status);
  if (status != Status::kOk || capabilities.min_alignment == 0) return 1;
  return capabilities.min_alignment;
}

std::string Library::words(Status status) const {
  const char* const text = functions_.GetErrorString(status);
  return fmt::format("{} (0x{:X})", text == nullptr ? "unknown error" : text,
                     static_cast<std::uint32_t>(status));
}

}  // namespace ropewalk::transport::window::sisci
