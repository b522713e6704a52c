// A transport whose connections can be cut and joined again by a test: silently, as when a switch
// dies, or with errors.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "core/error.h"
#include "transport/transport.h"

namespace ropewalk::transport::rails::testing {

enum class Cut : int { kNone, kSilent, kError };

/// What all connections of a transport run over. Threads: any.
struct Cable {
  std::atomic<Cut> cut = Cut::kNone;
  std::atomic<bool> holds_sends = false;   ///< sends are not finished, though they arrive
  std::atomic<std::uint64_t> corrupt = 0;  ///< so many messages come with a changed byte
  [[nodiscard]] bool silent() const {
    if (cut == Cut::kError) throw Error(Errc::kPeerLost, "{}", "the cable is cut");
    return cut == Cut::kSilent;
  }
};

/// Nothing of it is finished while the cable is silent; a send that began then begins afterwards.
class CuttableRequest final : public Request {
 public:
  CuttableRequest(std::unique_ptr<Request> inner, Cable& cable, void* corruptible = nullptr)
      : inner_(std::move(inner)), cable_(cable), corruptible_(corruptible) {}
  std::optional<std::size_t> test() override {
    const bool is_send = corruptible_ == nullptr;
    if (cable_.silent() || (is_send && cable_.holds_sends)) return std::nullopt;
    const std::optional<std::size_t> bytes = inner_->test();
    std::uint64_t left = cable_.corrupt;
    if (bytes && corruptible_ != nullptr && *bytes > 20'000 && left > 0 &&
        cable_.corrupt.compare_exchange_strong(left, left - 1)) {
      static_cast<std::byte*>(corruptible_)[*bytes - 7] ^= std::byte{4};
    }
    return bytes;
  }
  [[nodiscard]] std::span<const std::size_t> sizes() const override { return inner_->sizes(); }

 private:
  std::unique_ptr<Request> inner_;
  Cable& cable_;
  void* corruptible_;
};

class CuttableSender final : public SendConnection {
 public:
  CuttableSender(std::unique_ptr<SendConnection> inner, Cable& cable)
      : inner_(std::move(inner)), cable_(cable) {}
  std::unique_ptr<Registration> register_memory(void* data, std::size_t bytes,
                                                MemoryKind kind) override {
    return inner_->register_memory(data, bytes, kind);
  }
  bool ready() override { return !cable_.silent() && inner_->ready(); }
  std::unique_ptr<Request> send(const void* data, std::size_t bytes, std::uint32_t tag,
                                Registration* registration) override {
    if (cable_.silent()) return nullptr;
    return wrap(inner_->send(data, bytes, tag, registration));
  }
  [[nodiscard]] bool splits_messages() const override { return inner_->splits_messages(); }
  std::unique_ptr<Request> send_split(std::span<const std::byte> head, const void* data,
                                      std::size_t bytes, std::uint32_t tag) override {
    if (cable_.silent()) return nullptr;
    return wrap(inner_->send_split(head, data, bytes, tag));
  }

 private:
  std::unique_ptr<Request> wrap(std::unique_ptr<Request> request) {
    if (request == nullptr) return nullptr;
    return std::make_unique<CuttableRequest>(std::move(request), cable_);
  }
  std::unique_ptr<SendConnection> inner_;
  Cable& cable_;
};

class CuttableReceiver final : public ReceiveConnection {
 public:
  CuttableReceiver(std::unique_ptr<ReceiveConnection> inner, Cable& cable)
      : inner_(std::move(inner)), cable_(cable) {}
  std::unique_ptr<Registration> register_memory(void* data, std::size_t bytes,
                                                MemoryKind kind) override {
    return inner_->register_memory(data, bytes, kind);
  }
  bool ready() override { return !cable_.silent() && inner_->ready(); }
  std::unique_ptr<Request> receive(std::span<const ReceiveBuffer> buffers) override {
    if (cable_.silent()) return nullptr;
    auto request = inner_->receive(buffers);
    if (request == nullptr) return nullptr;
    return std::make_unique<CuttableRequest>(std::move(request), cable_, buffers.front().data);
  }
  std::unique_ptr<Request> flush(std::span<const ReceiveBuffer> buffers) override {
    return inner_->flush(buffers);
  }

 private:
  std::unique_ptr<ReceiveConnection> inner_;
  Cable& cable_;
};

class CuttableListener final : public Listener {
 public:
  CuttableListener(std::unique_ptr<Listener> inner, Cable& cable)
      : inner_(std::move(inner)), cable_(cable) {}
  [[nodiscard]] const Handle& handle() const override { return inner_->handle(); }
  std::unique_ptr<ReceiveConnection> accept() override {
    if (cable_.cut != Cut::kNone) return nullptr;
    auto made = inner_->accept();
    if (made == nullptr) return nullptr;
    return std::make_unique<CuttableReceiver>(std::move(made), cable_);
  }

 private:
  std::unique_ptr<Listener> inner_;
  Cable& cable_;
};

class CuttableConnector final : public Connector {
 public:
  CuttableConnector(std::unique_ptr<Connector> inner, Cable& cable)
      : inner_(std::move(inner)), cable_(cable) {}
  std::unique_ptr<SendConnection> poll() override {
    if (cable_.silent()) return nullptr;
    auto made = inner_->poll();
    if (made == nullptr) return nullptr;
    return std::make_unique<CuttableSender>(std::move(made), cable_);
  }

 private:
  std::unique_ptr<Connector> inner_;
  Cable& cable_;
};

/// Each device of `inner` on the cable. The cable outlives it.
class Cuttable final : public Transport {
 public:
  Cuttable(std::unique_ptr<Transport> inner, Cable& cable)
      : inner_(std::move(inner)), cable_(cable) {}
  [[nodiscard]] std::string name() const override { return inner_->name(); }
  [[nodiscard]] int num_devices() const override { return inner_->num_devices(); }
  [[nodiscard]] DeviceProperties properties(int device) const override {
    return inner_->properties(device);
  }
  std::unique_ptr<Listener> listen(int device) override {
    return std::make_unique<CuttableListener>(inner_->listen(device), cable_);
  }
  std::unique_ptr<Connector> connect(int device, const Handle& handle) override {
    if (cable_.cut == Cut::kError) throw Error(Errc::kPeerLost, "{}", "the cable is cut");
    return std::make_unique<CuttableConnector>(inner_->connect(device, handle), cable_);
  }
  void settle() override { inner_->settle(); }

 private:
  std::unique_ptr<Transport> inner_;
  Cable& cable_;
};

}  // namespace ropewalk::transport::rails::testing
