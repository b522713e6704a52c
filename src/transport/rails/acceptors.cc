#include "transport/rails/acceptors.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/log.h"

namespace ropewalk::transport::rails {
namespace {

// One that does not say whose it is in this time is no rail.
constexpr auto kHelloTime = std::chrono::seconds(10);
constexpr std::size_t kMostArriving = 256;

}  // namespace

Acceptors::Acceptors(const Context& context) : context_(context) {
  const Lock lock(mutex_);
  std::vector<DeviceFacts> facts;
  std::vector<Offer> offers;
  std::string failures;
  for (const Device& device : context_.devices) {
    DeviceFacts fact;
    fact.name = device.properties.name;
    fact.fabric = fabric_code(device.properties.fabric);
    fact.speed_mbps = static_cast<float>(device.properties.speed_mbps);
    try {
      Acceptor acceptor{&device, device.transport->listen(device.number)};
      fact.provider = device.provider;
      fact.handle = acceptor.listener->handle();
      offers.push_back(
          {static_cast<std::uint8_t>(facts.size()), fact.provider, fact.fabric, fact.handle});
      acceptors_.push_back(std::move(acceptor));
    } catch (const Error& error) {
      // With no provider it is paired with nothing.
      failures +=
          fmt::format("{}{}: {}", failures.empty() ? "" : "; ", device.name(), error.what());
      log::warn("rails: {} is left out: {}", device.name(), error.what());
    }
    facts.push_back(std::move(fact));
  }
  if (acceptors_.empty()) {
    throw Error(Errc::kSystem, "rails: no device can listen: {}",
                failures.empty() ? "there is none" : failures);
  }
  devices_ = encode(facts);
  handle_ = encode_offers(offers, kHandleBytes);
}

std::shared_ptr<ReceiverCore> Acceptors::take_new() {
  const Lock lock(mutex_);
  poll(Clock::now());
  if (new_.empty()) return nullptr;
  std::shared_ptr<ReceiverCore> taken = std::move(new_.front());
  new_.pop_front();
  return taken;
}

void Acceptors::close() {
  const Lock lock(mutex_);
  closed_ = true;
  for (const std::shared_ptr<ReceiverCore>& core : new_) core->close();
  new_.clear();
}

Tended::Tending Acceptors::tend(Clock::time_point now) {
  const Lock lock(mutex_);
  poll(now);
  const bool needed =
      std::ranges::any_of(cores_, [](const auto& entry) { return !entry.second.expired(); });
  if (closed_ && !needed) {
    arriving_.clear();
    acceptors_.clear();
    return Tending::kOver;
  }
  return arriving_.empty() ? Tending::kIdle : Tending::kBusy;
}

void Acceptors::link_changed(const std::string& /*name*/, bool /*up*/) {}

void Acceptors::poll(Clock::time_point now) {
  for (Acceptor& acceptor : acceptors_) {
    try {
      while (arriving_.size() < kMostArriving) {
        std::unique_ptr<ReceiveConnection> came = acceptor.listener->accept();
        if (came == nullptr) break;
        arriving_.push_back(std::make_unique<ArrivingRail>(*acceptor.device, std::move(came)));
      }
    } catch (const Error& error) {
      log::info(log::kNet, "rails: accepting over {}: {}", acceptor.device->name(), error.what());
    }
  }
  for (auto at = arriving_.begin(); at != arriving_.end();) {
    std::optional<Hello> hello;
    bool gone = false;
    try {
      if (const std::optional<ArrivingRail::Came> came = (*at)->next()) {
        if (came->head.kind == Kind::kHello) hello = decode_hello(came->following);
        if (hello) (*at)->release();
        gone = !hello;
      } else {
        gone = now - (*at)->since > kHelloTime;
      }
    } catch (const Error& error) {
      log::info(log::kNet, "rails: a rail over {} ended early: {}", (*at)->name, error.what());
      gone = true;
    }
    if (!hello && !gone) {
      ++at;
      continue;
    }
    std::unique_ptr<ArrivingRail> rail = std::move(*at);
    at = arriving_.erase(at);
    if (hello) welcome(std::move(rail), *hello);
  }
}

void Acceptors::welcome(std::unique_ptr<ArrivingRail> rail, const Hello& hello) {
  const auto known = cores_.find(hello.connection);
  if (known != cores_.end()) {
    if (const std::shared_ptr<ReceiverCore> core = known->second.lock()) {
      core->adopt(std::move(rail), hello);
    }
    return;
  }
  if (closed_) return;
  auto core = std::make_shared<ReceiverCore>(context_, devices_);
  cores_[hello.connection] = core;
  core->adopt(std::move(rail), hello);
  context_.keeper->add(core);
  new_.push_back(std::move(core));
}

}  // namespace ropewalk::transport::rails
