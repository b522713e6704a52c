#include "check_plugin/plugin.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <fstream>

#include "check_plugin/interface.h"
#include "core/error.h"

namespace ropewalk::check_plugin {
namespace {

// Whether some mapping of this process comes from `file`.
bool mapped(const std::string& file) {
  std::ifstream maps("/proc/self/maps");
  const std::string ending = " " + file;
  for (std::string line; std::getline(maps, line);) {
    if (line.ends_with(ending)) return true;
  }
  return false;
}

// The file that the loader took, which may be another than was named.
std::string loaded_file(void* symbol, const std::string& named) {
  Dl_info info{};
  if (symbol == nullptr || dladdr(symbol, &info) == 0 || info.dli_fname == nullptr) return named;
  char* resolved = realpath(info.dli_fname, nullptr);
  if (resolved == nullptr) return info.dli_fname;
  std::string file = resolved;
  free(resolved);  // NOLINT(cppcoreguidelines-no-malloc): realpath's
  return file;
}

}  // namespace

Plugin::Plugin(const std::string& file, std::optional<int> version, ProcessPage& page)
    : page_(page) {
  {
    const Noted noted(page_, Call::kLoad);
    library_ = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  }
  if (library_ == nullptr) {
    const char* reason = dlerror();
    throw Error(Errc::kSystem, "{}", reason == nullptr ? "dlopen failed" : reason);
  }
  void* table = nullptr;
  for (int number = abi::kNewestVersion; number >= abi::kOldestVersion; --number) {
    void* symbol = dlsym(library_, fmt::format("ncclNetPlugin_v{}", number).c_str());
    if (symbol == nullptr) continue;
    versions_.push_back(number);
    if (version_ == 0 && (!version || *version == number)) {
      version_ = number;
      table = symbol;
    }
  }
  if (version_ == 0) {
    std::string message =
        version ? fmt::format("no symbol ncclNetPlugin_v{}", *version)
                : fmt::format("none of the symbols ncclNetPlugin_v{} to ncclNetPlugin_v{}",
                              abi::kOldestVersion, abi::kNewestVersion);
    if (!versions_.empty()) message += fmt::format("; there is v{}", fmt::join(versions_, ", v"));
    throw Error(Errc::kInvalidUsage, message);
  }
  file_ = loaded_file(table, file);
  interface_ = make_interface(version_, table);
}

// The library stays: children end with it loaded, as a program would.
Plugin::~Plugin() = default;

const char* Plugin::name() const noexcept { return interface_->name(); }
std::vector<std::string_view> Plugin::missing_members() const {
  return interface_->missing_members();
}
bool Plugin::has(Call call) const noexcept { return interface_->has(call); }
bool Plugin::has_dma_buf() const noexcept { return interface_->has_dma_buf(); }
std::size_t Plugin::largest_message() const noexcept { return interface_->largest_message(); }

abi::Result Plugin::init(void** context, std::uint64_t comm_id, abi::Logger logger) {
  const Noted noted(page_, Call::kInit);
  return interface_->init(context, comm_id, logger);
}
abi::Result Plugin::finalize(void* context) {
  const Noted noted(page_, Call::kFinalize);
  return interface_->finalize(context);
}
abi::Result Plugin::devices(int* count) {
  const Noted noted(page_, Call::kDevices);
  return interface_->devices(count);
}
abi::Result Plugin::properties(int device, Properties& properties) {
  const Noted noted(page_, Call::kGetProperties);
  return interface_->properties(device, properties);
}
abi::Result Plugin::listen(void* context, int device, void* handle, void** listen_comm) {
  const Noted noted(page_, Call::kListen);
  return interface_->listen(context, device, handle, listen_comm);
}
abi::Result Plugin::connect(void* context, int device, abi::CommConfig* config, void* handle,
                            void** send_comm, abi::DeviceHandle** device_handle) {
  const Noted noted(page_, Call::kConnect);
  return interface_->connect(context, device, config, handle, send_comm, device_handle);
}
abi::Result Plugin::accept(void* listen_comm, void** recv_comm, abi::DeviceHandle** device_handle) {
  const Noted noted(page_, Call::kAccept);
  return interface_->accept(listen_comm, recv_comm, device_handle);
}
abi::Result Plugin::reg_mr(void* comm, void* data, std::size_t bytes, int type, void** mhandle) {
  const Noted noted(page_, Call::kRegMr);
  return interface_->reg_mr(comm, data, bytes, type, mhandle);
}
abi::Result Plugin::dereg_mr(void* comm, void* mhandle) {
  const Noted noted(page_, Call::kDeregMr);
  return interface_->dereg_mr(comm, mhandle);
}
abi::Result Plugin::isend(void* comm, const Part& part, void** request) {
  const Noted noted(page_, Call::kIsend);
  return interface_->isend(comm, part, request);
}
abi::Result Plugin::irecv(void* comm, const std::vector<Part>& parts, void** request) {
  const Noted noted(page_, Call::kIrecv);
  return interface_->irecv(comm, parts, request);
}
abi::Result Plugin::iflush(void* comm, const std::vector<Part>& parts, void** request) {
  const Noted noted(page_, Call::kIflush);
  return interface_->iflush(comm, parts, request);
}
abi::Result Plugin::test(void* request, int* done, int* sizes) {
  const Noted noted(page_, Call::kTest);
  return interface_->test(request, done, sizes);
}
abi::Result Plugin::close_send(void* comm) {
  const Noted noted(page_, Call::kCloseSend);
  return interface_->close_send(comm);
}
abi::Result Plugin::close_recv(void* comm) {
  const Noted noted(page_, Call::kCloseRecv);
  return interface_->close_recv(comm);
}
abi::Result Plugin::close_listen(void* comm) {
  const Noted noted(page_, Call::kCloseListen);
  return interface_->close_listen(comm);
}
abi::Result Plugin::irecv_consumed(void* comm, int n, void* request) {
  const Noted noted(page_, Call::kIrecvConsumed);
  return interface_->irecv_consumed(comm, n, request);
}
abi::Result Plugin::make_virtual_device(int* device, const std::vector<int>& members) {
  const Noted noted(page_, Call::kMakeVDevice);
  return interface_->make_virtual_device(device, members);
}
abi::Result Plugin::set_net_attributes(void* context, abi::NetAttributes* attributes) {
  const Noted noted(page_, Call::kSetNetAttr);
  return interface_->set_net_attributes(context, attributes);
}

bool Plugin::unload() {
  const Noted noted(page_, Call::kUnload);
  dlclose(library_);
  library_ = nullptr;
  return !mapped(file_);
}

std::string describe(abi::Result result) {
  switch (static_cast<int>(result)) {
    case abi::kSuccess: return "success (0)";
    case abi::kUnhandledCudaError: return "unhandled CUDA error (1)";
    case abi::kSystemError: return "system error (2)";
    case abi::kInternalError: return "internal error (3)";
    case abi::kInvalidArgument: return "invalid argument (4)";
    case abi::kInvalidUsage: return "invalid usage (5)";
    case abi::kRemoteError: return "remote error (6)";
    case 7: return "in progress (7)";
    case 8: return "timeout (8)";
    default: return fmt::format("unknown code ({})", static_cast<int>(result));
  }
}

std::string output(int number) {
  return number == kUnwritten ? "not written" : fmt::format("{}", number);
}

}  // namespace ropewalk::check_plugin
