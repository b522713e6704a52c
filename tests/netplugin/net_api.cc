#include "netplugin/net_api.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <stdexcept>

namespace ropewalk::netplugin::testing {
namespace {

// What NCCL leaves in results: an old pointer, and a number that is neither 0 nor 1.
void spoil(void** pointer) {
  static int stale = 0;
  if (pointer != nullptr) *pointer = &stale;
}

template <typename Function>
struct PropertiesOf;
template <typename Properties>
struct PropertiesOf<abi::Result (*)(int, Properties*)> {
  using type = Properties;
};

template <int kVersion, typename Table>
class NetOf final : public NetApi {
 public:
  explicit NetOf(const Table& table) : table_(table) {}
  [[nodiscard]] int version() const override { return kVersion; }
  [[nodiscard]] std::string name() const override { return table_.name; }
  [[nodiscard]] std::size_t handle_bytes() const override {
    return kVersion == 4 ? abi::kShortHandleBytes : abi::kHandleBytes;
  }

  int init(abi::Logger log, void** context) override {
    *context = nullptr;
    if constexpr (kVersion >= 11) {
      spoil(context);
      abi::CommConfig config = {abi::kUndefined};
      return table_.init(context, 7, &config, log, nullptr);
    } else if constexpr (kVersion == 10) {
      return table_.init(log, nullptr);
    } else {
      return table_.init(log);
    }
  }
  int finalize(void* context) override {
    if constexpr (kVersion >= 11) {
      return table_.finalize(context);
    } else {
      return 0;
    }
  }
  int devices(int* count) override {
    *count = -1;
    return table_.devices(count);
  }
  int properties(int device, Stated* stated) override {
    using Properties = typename PropertiesOf<decltype(table_.get_properties)>::type;
    Properties p;
    std::memset(&p, 0xa5, sizeof p);
    const int result = table_.get_properties(device, &p);
    if (result != 0) return result;
    *stated = {p.name, p.pci_path, p.guid, p.ptr_support, p.speed, p.port, p.max_comms, 1, 1};
    if constexpr (requires { p.max_recvs; }) stated->max_recvs = p.max_recvs;
    if constexpr (requires { p.net_device_type; }) {
      EXPECT_EQ(p.net_device_type, 0);
      EXPECT_EQ(p.net_device_version, 0);
    }
    if constexpr (requires { p.reg_is_global; }) {
      EXPECT_EQ(p.reg_is_global, 0);
    }
    if constexpr (requires { p.force_flush; }) {
      EXPECT_EQ(p.force_flush, 0);
      EXPECT_EQ(p.members.count, 1);
      EXPECT_EQ(p.members.devices[0], device);
      EXPECT_EQ(p.max_p2p_bytes, p.max_coll_bytes);
      stated->max_p2p_bytes = p.max_p2p_bytes;
    }
    if constexpr (requires { p.max_multi_request_size; }) {
      EXPECT_EQ(p.max_multi_request_size, 1);
    }
    if constexpr (requires { p.rail_id; }) {
      EXPECT_EQ(p.rail_id, -1);
      EXPECT_EQ(p.plane_id, -1);
    }
    return result;
  }

  int listen(void* context, int device, void* handle, void** listener) override {
    spoil(listener);
    if constexpr (kVersion >= 11) {
      return table_.listen(context, device, handle, listener);
    } else {
      return table_.listen(device, handle, listener);
    }
  }
  int connect(void* context, int device, void* handle, void** comm) override {
    spoil(comm);
    [[maybe_unused]] abi::DeviceHandle* device_handle = nullptr;
    int result = 0;
    if constexpr (kVersion >= 11) {
      result = table_.connect(context, device, handle, comm, &device_handle);
    } else if constexpr (kVersion == 10) {
      result = table_.connect(device, nullptr, handle, comm, &device_handle);
    } else if constexpr (kVersion >= 7) {
      result = table_.connect(device, handle, comm, &device_handle);
    } else {
      result = table_.connect(device, handle, comm);
    }
    EXPECT_EQ(device_handle, nullptr);
    return result;
  }
  int accept(void* listener, void** comm) override {
    spoil(comm);
    if constexpr (kVersion >= 7) {
      return table_.accept(listener, comm, nullptr);
    } else {
      return table_.accept(listener, comm);
    }
  }

  int register_memory(void* comm, void* data, std::size_t bytes, int type, void** memory) override {
    spoil(memory);
    if constexpr (kVersion >= 8) {
      return table_.reg_mr(comm, data, bytes, type, memory);
    } else {
      return table_.reg_mr(comm, data, static_cast<int>(bytes), type, memory);
    }
  }
  int deregister(void* comm, void* memory) override { return table_.dereg_mr(comm, memory); }

  int isend(void* comm, const Message& message, void** request) override {
    spoil(request);
    if constexpr (kVersion >= 10) {
      return table_.isend(comm, message.data, message.bytes, message.tag, message.memory, nullptr,
                          request);
    } else if constexpr (kVersion == 9) {
      return table_.isend(comm, message.data, message.bytes, message.tag, message.memory, request);
    } else if constexpr (kVersion >= 5) {
      return table_.isend(comm, message.data, static_cast<int>(message.bytes), message.tag,
                          message.memory, request);
    } else {
      return table_.isend(comm, message.data, static_cast<int>(message.bytes), message.memory,
                          request);
    }
  }
  int irecv(void* comm, std::vector<Message> messages, void** request) override {
    spoil(request);
    if constexpr (kVersion == 4) {
      const Message& one = messages.at(0);
      return table_.irecv(comm, one.data, static_cast<int>(one.bytes), one.memory, request);
    } else {
      using Size = std::conditional_t<(kVersion >= 9), std::size_t, int>;
      std::vector<void*> data;
      std::vector<void*> memories;
      std::vector<Size> sizes;
      std::vector<int> tags;
      for (const Message& message : messages) {
        data.push_back(message.data);
        memories.push_back(message.memory);
        sizes.push_back(static_cast<Size>(message.bytes));
        tags.push_back(message.tag);
      }
      const int n = static_cast<int>(messages.size());
      if constexpr (kVersion >= 10) {
        if (kVersion == 12 && n == 1) *request = handle_for_optional_completion();
        return table_.irecv(comm, n, data.data(), sizes.data(), tags.data(), memories.data(),
                            nullptr, request);
      } else {
        return table_.irecv(comm, n, data.data(), sizes.data(), tags.data(), memories.data(),
                            request);
      }
    }
  }
  int iflush(void* comm, const Message& message, void** request) override {
    spoil(request);
    void* data = message.data;
    int size = static_cast<int>(message.bytes);
    void* memory = message.memory;
    if constexpr (kVersion == 4) {
      return table_.iflush(comm, data, size, memory, request);
    } else {
      return table_.iflush(comm, 1, &data, &size, &memory, request);
    }
  }
  int test(void* request, int* done, int* sizes) override {
    *done = -1;
    return table_.test(request, done, sizes);
  }
  int close_send(void* comm) override { return table_.close_send(comm); }
  int close_recv(void* comm) override { return table_.close_recv(comm); }
  int close_listen(void* listener) override { return table_.close_listen(listener); }

 private:
  static void* handle_for_optional_completion() {
    // NOLINTNEXTLINE(performance-no-int-to-ptr): a value of the interface, no address
    return reinterpret_cast<void*>(abi::kOptionalCompletion);
  }
  const Table& table_;
};

template <int kVersion, typename Table>
std::unique_ptr<NetApi> make(const void* table) {
  return std::make_unique<NetOf<kVersion, Table>>(*static_cast<const Table*>(table));
}

std::mutex lines_mutex;
std::vector<std::string>& lines() {
  static std::vector<std::string> kept;
  return kept;
}

}  // namespace

Library::Library(const char* path) : library_(dlopen(path, RTLD_NOW | RTLD_LOCAL)) {
  if (library_ == nullptr) throw std::runtime_error(dlerror());
}

Library::~Library() { dlclose(library_); }

std::unique_ptr<NetApi> Library::api(int version) const {
  const std::string symbol = "ncclNetPlugin_v" + std::to_string(version);
  const void* table = dlsym(library_, symbol.c_str());
  if (table == nullptr) throw std::runtime_error(symbol + " is not exported");
  switch (version) {
    case 4: return make<4, abi::NetV4>(table);
    case 5: return make<5, abi::NetV5>(table);
    case 6: return make<6, abi::NetV6>(table);
    case 7: return make<7, abi::NetV7>(table);
    case 8: return make<8, abi::NetV8>(table);
    case 9: return make<9, abi::NetV9>(table);
    case 10: return make<10, abi::NetV10>(table);
    case 11: return make<11, abi::NetV11>(table);
    case 12: return make<12, abi::NetV12>(table);
    default: throw std::runtime_error("no such version");
  }
}

void logger(int level, unsigned long /*subsystems*/, const char* /*file*/, int /*line*/,
            const char* format, ...) {
  std::array<char, 2048> text{};
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text.data(), text.size(), format, arguments);
  va_end(arguments);
  if (level > abi::kLogWarn) return;
  const std::lock_guard lock(lines_mutex);
  lines().emplace_back(text.data());
}

std::vector<std::string> take_lines() {
  const std::lock_guard lock(lines_mutex);
  return std::exchange(lines(), {});
}

}  // namespace ropewalk::netplugin::testing
