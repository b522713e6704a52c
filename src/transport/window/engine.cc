#include "transport/window/engine.h"

#include <utility>

#include "transport/window/receiver.h"
#include "transport/window/sender.h"
#include "transport/window/verify.h"

namespace ropewalk::transport::window {
namespace {

// From here on one copy by the kernel, with its system call and page look-ups, is cheaper than two
// copies through the bounce ring.
constexpr std::size_t kDefaultPullBytes = 16 << 10;

class WindowListener final : public Listener {
 public:
  WindowListener(std::unique_ptr<Acceptor> acceptor, Driver& driver, int device,
                 const Options& options)
      : acceptor_(std::move(acceptor)), driver_(driver), device_(device), options_(options) {}
  [[nodiscard]] const Handle& handle() const override { return acceptor_->handle(); }
  std::unique_ptr<ReceiveConnection> accept() override {
    std::unique_ptr<Path> path = acceptor_->accept();
    if (!path) return nullptr;
    return std::make_unique<WindowReceiver>(std::move(path), driver_, device_, options_);
  }

 private:
  std::unique_ptr<Acceptor> acceptor_;
  Driver& driver_;
  const int device_;
  const Options options_;
};

class WindowConnector final : public Connector {
 public:
  explicit WindowConnector(std::unique_ptr<WindowSender> sender) : sender_(std::move(sender)) {}
  std::unique_ptr<SendConnection> poll() override {
    if (!sender_) {
      throw Error(Errc::kInvalidUsage, "poll of a connector that has handed out its connection");
    }
    // The path becomes ready later; until then send() returns nullptr.
    return std::move(sender_);
  }

 private:
  std::unique_ptr<WindowSender> sender_;
};

class Window final : public Transport {
 public:
  Window(std::unique_ptr<Driver> driver, const Config& config) : driver_(std::move(driver)) {
    const std::string& verify = config.text(Setting::kVerify);
    options_.verify = verify != "off";
    options_.checksums = verify == "all";
    options_.require_pull = config.text(Setting::kSingleCopy) == "on";
    options_.pull_bytes = config.bytes(Setting::kSingleCopyBytes);
    if (options_.pull_bytes == 0) options_.pull_bytes = kDefaultPullBytes;
  }

  [[nodiscard]] std::string name() const override { return driver_->name(); }
  [[nodiscard]] int num_devices() const override { return driver_->num_devices(); }
  [[nodiscard]] std::string why_no_devices() const override { return driver_->why_no_devices(); }

  [[nodiscard]] DeviceProperties properties(int device) const override {
    check(device);
    DeviceProperties properties = driver_->properties(device);
    properties.max_message_bytes = kMaxMessageBytes;
    properties.max_requests = static_cast<int>(kMaxRequests);
    properties.max_grouped_receives = static_cast<int>(kMaxGroup);
    return properties;
  }

  std::unique_ptr<Listener> listen(int device) override {
    check(device);
    return std::make_unique<WindowListener>(
        driver_->open_acceptor(device, {kReceiverWindowBytes, kSenderWindowBytes}), *driver_,
        device, options_);
  }

  std::unique_ptr<Connector> connect(int device, const Handle& handle) override {
    check(device);
    return std::make_unique<WindowConnector>(std::make_unique<WindowSender>(
        driver_->connect(device, handle, {kSenderWindowBytes, kReceiverWindowBytes}), *driver_,
        device, options_));
  }

  void settle() override { driver_->settle(); }

 private:
  void check(int device) const {
    if (device < 0 || device >= num_devices()) {
      throw Error(Errc::kInvalidArgument, "{}: device {} of {}", name(), device, num_devices());
    }
  }
  std::unique_ptr<Driver> driver_;
  Options options_;
};

}  // namespace

std::unique_ptr<Transport> make_transport(std::unique_ptr<Driver> driver, const Config& config) {
  return std::make_unique<Window>(std::move(driver), config);
}

}  // namespace ropewalk::transport::window
