#include "check_plugin/interface.h"

#include <algorithm>
#include <array>
#include <climits>
#include <cstring>
#include <type_traits>
#include <utility>

#include "core/error.h"
#include "netplugin/abi/properties.h"
#include "netplugin/abi/tables.h"

namespace ropewalk::check_plugin {
namespace {

// Parts of one receive or flush; NCCL never groups more.
constexpr std::size_t kMostParts = 64;

abi::Result take_profiler_event(void** /*event*/, int /*type*/, void* /*parent*/,
                                std::int64_t /*plugin_id*/, void* /*extra*/) {
  return abi::kSuccess;
}

// getProperties is asked twice, over memory with different bytes in it: a field that holds them
// both times was not written. That it differs says nothing, since a plugin may allocate a name each
// time.
constexpr int kFirstBytes = 0xa5;
constexpr int kSecondBytes = 0x5a;

template <typename Field>
bool written(const Field& first, const Field& second) {
  // Bytes, since an unwritten field has no value.
  const auto holds = [](const Field& field, int byte) {
    std::array<unsigned char, sizeof(Field)> bytes;
    std::memcpy(bytes.data(), &field, sizeof(Field));
    return std::all_of(bytes.begin(), bytes.end(), [&](unsigned char b) { return b == byte; });
  };
  return !holds(first, kFirstBytes) || !holds(second, kSecondBytes);
}

template <typename Raw>
struct Asked {
  Raw first;
  Raw second;

  template <typename Field>
  Field take(Field Raw::*field, const char* field_name, std::vector<std::string>& unwritten) const {
    if (written(first.*field, second.*field)) return second.*field;
    unwritten.emplace_back(field_name);
    return Field{};
  }
};

std::optional<std::string> text_of(const char* text) {
  if (text == nullptr) return {};
  return std::string(text);
}

template <typename Raw>
Raw properties_argument(abi::Result (*get_properties)(int, Raw*));

template <typename Net>
class VersionInterface final : public Interface {
  using Raw = decltype(properties_argument(std::declval<Net>().get_properties));

 public:
  explicit VersionInterface(void* table) : net_(static_cast<Net*>(table)) {}

  [[nodiscard]] const char* name() const override { return net_->name; }

  [[nodiscard]] std::vector<std::string_view> missing_members() const override {
    std::vector<std::string_view> missing;
    const auto need = [&](auto* function, std::string_view member) {
      if (function == nullptr) missing.push_back(member);
    };
    need(net_->init, "init");
    need(net_->devices, "devices");
    need(net_->get_properties, "getProperties");
    need(net_->listen, "listen");
    need(net_->connect, "connect");
    need(net_->accept, "accept");
    need(net_->reg_mr, "regMr");
    need(net_->dereg_mr, "deregMr");
    need(net_->isend, "isend");
    need(net_->irecv, "irecv");
    need(net_->iflush, "iflush");
    need(net_->test, "test");
    need(net_->close_send, "closeSend");
    need(net_->close_recv, "closeRecv");
    need(net_->close_listen, "closeListen");
    if constexpr (requires { net_->finalize; }) need(net_->finalize, "finalize");
    return missing;
  }

  [[nodiscard]] bool has(Call call) const override {
    if constexpr (requires { net_->irecv_consumed; }) {
      if (call == Call::kIrecvConsumed) return net_->irecv_consumed != nullptr;
    }
    if constexpr (requires { net_->make_virtual_device; }) {
      if (call == Call::kMakeVDevice) return net_->make_virtual_device != nullptr;
    }
    if constexpr (requires { net_->set_net_attributes; }) {
      if (call == Call::kSetNetAttr) return net_->set_net_attributes != nullptr;
    }
    // All others must be there.
    return call != Call::kIrecvConsumed && call != Call::kMakeVDevice && call != Call::kSetNetAttr;
  }

  [[nodiscard]] bool has_dma_buf() const override {
    if constexpr (requires { net_->reg_mr_dma_buf; }) return net_->reg_mr_dma_buf != nullptr;
    return false;
  }

  [[nodiscard]] std::size_t largest_message() const override {
    // NCCL limits sizes for versions whose sizes are int.
    constexpr bool kWide = std::is_invocable_v<decltype(net_->irecv), void*, int, void**,
                                               std::size_t*, int*, void**, void**> ||
                           std::is_invocable_v<decltype(net_->irecv), void*, int, void**,
                                               std::size_t*, int*, void**, void**, void**>;
    return kWide ? abi::kLargestMessageLimit : std::size_t{1} << 30;
  }

  abi::Result init(void** context, std::uint64_t comm_id, abi::Logger logger) override {
    if constexpr (requires { net_->finalize; }) {
      abi::CommConfig config{abi::kUndefined};
      return net_->init(context, comm_id, &config, logger, &take_profiler_event);
    } else if constexpr (requires { net_->init(logger, &take_profiler_event); }) {
      return net_->init(logger, &take_profiler_event);
    } else {
      return net_->init(logger);
    }
  }

  abi::Result finalize(void* context) override {
    if constexpr (requires { net_->finalize; }) {
      return net_->finalize(context);
    } else {
      static_cast<void>(context);
      return abi::kSuccess;
    }
  }

  abi::Result devices(int* count) override { return net_->devices(count); }

  abi::Result properties(int device, Properties& properties) override {
    Asked<Raw> asked;
    std::memset(static_cast<void*>(&asked.first), kFirstBytes, sizeof(Raw));
    std::memset(static_cast<void*>(&asked.second), kSecondBytes, sizeof(Raw));
    if (const abi::Result result = net_->get_properties(device, &asked.first);
        result != abi::kSuccess) {
      return result;
    }
    if (const abi::Result result = net_->get_properties(device, &asked.second);
        result != abi::kSuccess) {
      return result;
    }
    std::vector<std::string> unwritten;
    Properties found;
    found.name = text_of(asked.take(&Raw::name, "name", unwritten));
    found.pci_path = text_of(asked.take(&Raw::pci_path, "pciPath", unwritten));
    found.guid = asked.take(&Raw::guid, "guid", unwritten);
    found.ptr_support = asked.take(&Raw::ptr_support, "ptrSupport", unwritten);
    found.speed = asked.take(&Raw::speed, "speed", unwritten);
    found.port = asked.take(&Raw::port, "port", unwritten);
    found.max_comms = asked.take(&Raw::max_comms, "maxComms", unwritten);
    if constexpr (requires { asked.first.max_recvs; }) {
      found.latency = asked.take(&Raw::latency, "latency", unwritten);
      found.max_recvs = asked.take(&Raw::max_recvs, "maxRecvs", unwritten);
    }
    if constexpr (requires { asked.first.net_device_type; }) {
      found.net_device_type = asked.take(&Raw::net_device_type, "netDeviceType", unwritten);
      found.net_device_version =
          asked.take(&Raw::net_device_version, "netDeviceVersion", unwritten);
    }
    if constexpr (requires { asked.first.reg_is_global; }) {
      found.reg_is_global = asked.take(&Raw::reg_is_global, "regIsGlobal", unwritten);
    }
    if constexpr (requires { asked.first.members; }) {
      found.force_flush = asked.take(&Raw::force_flush, "forceFlush", unwritten);
      found.max_p2p_bytes = asked.take(&Raw::max_p2p_bytes, "maxP2pBytes", unwritten);
      found.max_coll_bytes = asked.take(&Raw::max_coll_bytes, "maxCollBytes", unwritten);
      // Only the members that are counted must be written.
      const auto& members = asked.second.members;
      if (!written(asked.first.members.count, members.count)) {
        unwritten.emplace_back("vProps");
      } else {
        const auto most = static_cast<int>(std::size(members.devices));
        found.member_count = members.count;
        found.members.assign(members.devices, members.devices + std::clamp(members.count, 0, most));
      }
    }
    // maxMultiRequestSize of version 11 and later is read by no release, nor written by NCCL's
    // example of a plugin.
    if constexpr (requires { asked.first.rail_id; }) {
      found.rail_id = asked.take(&Raw::rail_id, "railId", unwritten);
      found.plane_id = asked.take(&Raw::plane_id, "planeId", unwritten);
    }
    found.unwritten = std::move(unwritten);
    properties = std::move(found);
    return abi::kSuccess;
  }

  abi::Result listen(void* context, int device, void* handle, void** comm) override {
    if constexpr (requires { net_->listen(context, device, handle, comm); }) {
      return net_->listen(context, device, handle, comm);
    } else {
      static_cast<void>(context);
      return net_->listen(device, handle, comm);
    }
  }

  abi::Result connect(void* context, int device, abi::CommConfig* config, void* handle, void** comm,
                      abi::DeviceHandle** device_handle) override {
    if constexpr (requires { net_->connect(context, device, handle, comm, device_handle); }) {
      static_cast<void>(config);
      return net_->connect(context, device, handle, comm, device_handle);
    } else if constexpr (requires { net_->connect(device, config, handle, comm, device_handle); }) {
      return net_->connect(device, config, handle, comm, device_handle);
    } else if constexpr (requires { net_->connect(device, handle, comm, device_handle); }) {
      return net_->connect(device, handle, comm, device_handle);
    } else {
      return net_->connect(device, handle, comm);
    }
  }

  abi::Result accept(void* listen_comm, void** comm, abi::DeviceHandle** device_handle) override {
    if constexpr (requires { net_->accept(listen_comm, comm, device_handle); }) {
      return net_->accept(listen_comm, comm, device_handle);
    } else {
      return net_->accept(listen_comm, comm);
    }
  }

  abi::Result reg_mr(void* comm, void* data, std::size_t bytes, int type, void** mhandle) override {
    if constexpr (std::is_same_v<decltype(net_->reg_mr),
                                 abi::Result (*)(void*, void*, int, int, void**)>) {
      return net_->reg_mr(comm, data, static_cast<int>(bytes), type, mhandle);
    } else {
      return net_->reg_mr(comm, data, bytes, type, mhandle);
    }
  }

  abi::Result dereg_mr(void* comm, void* mhandle) override { return net_->dereg_mr(comm, mhandle); }

  abi::Result isend(void* comm, const Part& part, void** request) override {
    void* data = part.data;
    void* mhandle = part.mhandle;
    const auto size = static_cast<int>(part.bytes);
    if constexpr (std::is_invocable_v<decltype(net_->isend), void*, void*, std::size_t, int, void*,
                                      void*, void**>) {
      return net_->isend(comm, data, part.bytes, part.tag, mhandle, nullptr, request);
    } else if constexpr (std::is_same_v<decltype(net_->isend),
                                        abi::Result (*)(void*, void*, std::size_t, int, void*,
                                                        void**)>) {
      return net_->isend(comm, data, part.bytes, part.tag, mhandle, request);
    } else if constexpr (std::is_invocable_v<decltype(net_->isend), void*, void*, int, int, void*,
                                             void**>) {
      return net_->isend(comm, data, size, part.tag, mhandle, request);
    } else {
      return net_->isend(comm, data, size, mhandle, request);
    }
  }

  abi::Result irecv(void* comm, const std::vector<Part>& parts, void** request) override {
    Arrays arrays(parts);
    const auto n = static_cast<int>(parts.size());
    if constexpr (std::is_invocable_v<decltype(net_->irecv), void*, int, void**, std::size_t*, int*,
                                      void**, void**, void**>) {
      std::array<void*, kMostParts> profiler_handles{};
      return net_->irecv(comm, n, arrays.data.data(), arrays.bytes.data(), arrays.tags.data(),
                         arrays.mhandles.data(), profiler_handles.data(), request);
    } else if constexpr (std::is_invocable_v<decltype(net_->irecv), void*, int, void**,
                                             std::size_t*, int*, void**, void**>) {
      return net_->irecv(comm, n, arrays.data.data(), arrays.bytes.data(), arrays.tags.data(),
                         arrays.mhandles.data(), request);
    } else if constexpr (std::is_invocable_v<decltype(net_->irecv), void*, int, void**, int*, int*,
                                             void**, void**>) {
      return net_->irecv(comm, n, arrays.data.data(), arrays.sizes.data(), arrays.tags.data(),
                         arrays.mhandles.data(), request);
    } else {
      return net_->irecv(comm, arrays.data[0], arrays.sizes[0], arrays.mhandles[0], request);
    }
  }

  abi::Result iflush(void* comm, const std::vector<Part>& parts, void** request) override {
    Arrays arrays(parts);
    const auto n = static_cast<int>(parts.size());
    if constexpr (std::is_invocable_v<decltype(net_->iflush), void*, int, void**, int*, void**,
                                      void**>) {
      return net_->iflush(comm, n, arrays.data.data(), arrays.sizes.data(), arrays.mhandles.data(),
                          request);
    } else {
      return net_->iflush(comm, arrays.data[0], arrays.sizes[0], arrays.mhandles[0], request);
    }
  }

  abi::Result test(void* request, int* done, int* sizes) override {
    return net_->test(request, done, sizes);
  }
  abi::Result close_send(void* comm) override { return net_->close_send(comm); }
  abi::Result close_recv(void* comm) override { return net_->close_recv(comm); }
  abi::Result close_listen(void* comm) override { return net_->close_listen(comm); }

  abi::Result irecv_consumed(void* comm, int n, void* request) override {
    if constexpr (requires { net_->irecv_consumed; }) {
      return net_->irecv_consumed(comm, n, request);
    } else {
      return abi::kInvalidUsage;
    }
  }

  abi::Result make_virtual_device(int* device, const std::vector<int>& members) override {
    if constexpr (requires { net_->make_virtual_device; }) {
      // NCCL hands the newest struct to older versions too, with no more members than they have.
      abi::VirtualDeviceV12 given{static_cast<int>(members.size()), {}};
      std::copy(members.begin(), members.end(), given.devices);
      using Argument = std::conditional_t<
          std::is_invocable_v<decltype(net_->make_virtual_device), int*, abi::VirtualDeviceV12*>,
          abi::VirtualDeviceV12, abi::VirtualDeviceV9>;
      return net_->make_virtual_device(device, reinterpret_cast<Argument*>(&given));
    } else {
      return abi::kInvalidUsage;
    }
  }

  abi::Result set_net_attributes(void* context, abi::NetAttributes* attributes) override {
    if constexpr (requires { net_->set_net_attributes; }) {
      return net_->set_net_attributes(context, attributes);
    } else {
      return abi::kInvalidUsage;
    }
  }

 private:
  // Parts as the interface takes them.
  struct Arrays {
    explicit Arrays(const std::vector<Part>& parts) {
      RW_ASSERT(!parts.empty() && parts.size() <= kMostParts);
      for (std::size_t i = 0; i < parts.size(); ++i) {
        data[i] = parts[i].data;
        bytes[i] = parts[i].bytes;
        sizes[i] = static_cast<int>(std::min<std::size_t>(parts[i].bytes, INT_MAX));
        tags[i] = parts[i].tag;
        mhandles[i] = parts[i].mhandle;
      }
    }
    // Not cleared: what latency is measured with has no time for it.
    std::array<void*, kMostParts> data;
    std::array<std::size_t, kMostParts> bytes;
    std::array<int, kMostParts> sizes;
    std::array<int, kMostParts> tags;
    std::array<void*, kMostParts> mhandles;
  };

  Net* net_;
};

}  // namespace

std::unique_ptr<Interface> make_interface(int version, void* table) {
  switch (version) {
    case 4: return std::make_unique<VersionInterface<abi::NetV4>>(table);
    case 5: return std::make_unique<VersionInterface<abi::NetV5>>(table);
    case 6: return std::make_unique<VersionInterface<abi::NetV6>>(table);
    case 7: return std::make_unique<VersionInterface<abi::NetV7>>(table);
    case 8: return std::make_unique<VersionInterface<abi::NetV8>>(table);
    case 9: return std::make_unique<VersionInterface<abi::NetV9>>(table);
    case 10: return std::make_unique<VersionInterface<abi::NetV10>>(table);
    case 11: return std::make_unique<VersionInterface<abi::NetV11>>(table);
    case 12: return std::make_unique<VersionInterface<abi::NetV12>>(table);
    default:
      throw Error(Errc::kInvalidArgument, "version {}: there are {} to {}", version,
                  abi::kOldestVersion, abi::kNewestVersion);
  }
}

}  // namespace ropewalk::check_plugin
