#include "transport/auto/auto.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/log.h"
#include "transport/auto/ends.h"
#include "transport/auto/offers.h"
#ifdef RW_HAVE_OFI
#include "transport/messaging/ofi/ofi.h"
#endif
#ifdef RW_HAVE_PSM2
#include "transport/messaging/psm2/psm2.h"
#endif
#include "transport/registry.h"

namespace ropewalk::transport {
namespace choosing {
namespace {

class AutoListener final : public Listener {
 public:
  AutoListener(std::shared_ptr<Acceptors> acceptors, std::chrono::nanoseconds peer_loss_time)
      : acceptors_(std::move(acceptors)), peer_loss_time_(peer_loss_time) {}
  [[nodiscard]] const Handle& handle() const override { return acceptors_->handle(); }
  std::unique_ptr<ReceiveConnection> accept() override {
    std::optional<Acceptors::Arrival> arrival = acceptors_->take_new();
    if (!arrival) return nullptr;
    return std::make_unique<AutoReceiver>(acceptors_, std::move(*arrival), peer_loss_time_);
  }

 private:
  std::shared_ptr<Acceptors> acceptors_;
  const std::chrono::nanoseconds peer_loss_time_;
};

class AutoConnector final : public Connector {
 public:
  explicit AutoConnector(std::unique_ptr<AutoSender> sender) : sender_(std::move(sender)) {}
  std::unique_ptr<SendConnection> poll() override {
    if (!sender_) {
      throw Error(Errc::kInvalidUsage, "poll of a connector that has handed out its connection");
    }
    return sender_->joined() ? std::move(sender_) : nullptr;
  }

 private:
  std::unique_ptr<AutoSender> sender_;
};

class Auto final : public Transport {
 public:
  explicit Auto(const Config& config) : peer_loss_time_(config.duration(Setting::kPeerLossTime)) {
    // Not cuda_ipc, which is taken by NET=cuda_ipc: the copies of a GPU, which NCCL's kernels wait
    // for, stand still while the program loads a kernel, frees or registers memory. Only who knows
    // the program can say that it does neither during a collective.
    add(PathKind::kShm, config);
    add(PathKind::kSisci, config);
#ifdef RW_HAVE_PSM2
    if (psm2::worth_a_look(config)) add(PathKind::kPsm2, config);
#endif
#ifdef RW_HAVE_OFI
    // libfabric reaches Omni-Path through libpsm2, too, which has one user in a process.
    if (open_as(PathKind::kPsm2) == nullptr && ofi::worth_a_look(config) &&
        add(PathKind::kOfi, config) && !ofi::better_than_tcp(*open_.back().transport, config)) {
      log::info(log::kInit, "auto: ofi is not used: it has no NIC of its own");
      open_.pop_back();
    }
#endif
    add(PathKind::kTcp, config);
    if (open_.empty()) throw Error(Errc::kSystem, "auto: no provider can be used here");
  }

  [[nodiscard]] std::string name() const override { return "auto"; }
  [[nodiscard]] int num_devices() const override {
    const OpenProvider* various = with_devices();
    return various == nullptr ? 1 : various->transport->num_devices();
  }

  [[nodiscard]] DeviceProperties properties(int device) const override {
    check(device);
    const OpenProvider* various = with_devices();
    DeviceProperties properties = various == nullptr ? open_.front().transport->properties(0)
                                                     : various->transport->properties(device);
    // Ranks may have different ones: as of TCP.
    properties.message_weight = 1;
    properties.joined_bytes = kSocketJoinedBytes;
    for (const OpenProvider& each : open_) {
      const DeviceProperties of = each.transport->properties(device_of(each, device));
      properties.max_message_bytes = std::min(properties.max_message_bytes, of.max_message_bytes);
      properties.max_requests = std::min(properties.max_requests, of.max_requests);
      properties.max_grouped_receives =
          std::min(properties.max_grouped_receives, of.max_grouped_receives);
      // A connection may end on any of them.
      properties.memory_kinds &= of.memory_kinds;
      properties.gpu_memory_by_cuda |= of.gpu_memory_by_cuda;
      properties.gpu_memory_mapped_later |= of.gpu_memory_mapped_later;
    }
    return properties;
  }

  std::unique_ptr<Listener> listen(int device) override {
    check(device);
    return std::make_unique<AutoListener>(std::make_shared<Acceptors>(providers(device), device),
                                          peer_loss_time_);
  }

  std::unique_ptr<Connector> connect(int device, const Handle& handle) override {
    check(device);
    std::optional<std::vector<Offer>> offers = decode_offers(handle);
    if (!offers) {
      throw Error(Errc::kInvalidArgument, "auto: not a handle of a listener of `auto`");
    }
    return std::make_unique<AutoConnector>(
        std::make_unique<AutoSender>(providers(device), std::move(*offers)));
  }

  void settle() override {
    for (const OpenProvider& each : open_) each.transport->settle();
  }

 private:
  struct OpenProvider {
    PathKind kind;
    std::unique_ptr<Transport> transport;
  };

  bool add(PathKind kind, const Config& config) {
    const std::string_view wanted = transport::name(kind);
    const std::vector<std::string_view> known = compiled_providers();
    if (std::find(known.begin(), known.end(), wanted) == known.end()) return false;
    try {
      // As NCCL asks for the kinds of memory before the path of a connection is known.
      std::unique_ptr<Transport> made = make_plain_transport(wanted, for_host_memory(config));
      if (made->num_devices() == 0) {
        const std::string why = made->why_no_devices();
        log::info(log::kInit, "auto: {} is not used: {}", wanted,
                  why.empty() ? "it has no device" : why);
        return false;
      }
      open_.push_back({kind, std::move(made)});
      return true;
    } catch (const Error& error) {
      log::info(log::kInit, "auto: {} is not used: {}", wanted, error.what());
      return false;
    }
  }

  [[nodiscard]] const OpenProvider* open_as(PathKind kind) const {
    for (const OpenProvider& each : open_) {
      if (each.kind == kind) return &each;
    }
    return nullptr;
  }
  // The provider by whose devices those of `auto` are distinguished: PCIe bridges, else libpsm2's
  // adapters, else libfabric's NICs, else several NICs.
  [[nodiscard]] const OpenProvider* with_devices() const {
    if (const OpenProvider* bridge = open_as(PathKind::kSisci)) return bridge;
    if (const OpenProvider* adapters = open_as(PathKind::kPsm2)) return adapters;
    if (const OpenProvider* fabric = open_as(PathKind::kOfi)) return fabric;
    const OpenProvider* nics = open_as(PathKind::kTcp);
    return nics != nullptr && nics->transport->num_devices() > 1 ? nics : nullptr;
  }
  [[nodiscard]] int device_of(const OpenProvider& each, int device) const {
    return &each == with_devices() ? device : 0;
  }
  [[nodiscard]] std::vector<Provider> providers(int device) const {
    std::vector<Provider> all;
    for (const OpenProvider& each : open_) {
      all.push_back({each.kind, each.transport.get(), device_of(each, device)});
    }
    return all;
  }
  void check(int device) const {
    if (device < 0 || device >= num_devices()) {
      throw Error(Errc::kInvalidArgument, "auto: device {} of {}", device, num_devices());
    }
  }

  const std::chrono::nanoseconds peer_loss_time_;
  std::vector<OpenProvider> open_;  // the best first
};

}  // namespace
}  // namespace choosing

std::unique_ptr<Transport> make_auto_transport(const Config& config) {
  return std::make_unique<choosing::Auto>(config);
}

}  // namespace ropewalk::transport
