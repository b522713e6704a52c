// One connection over several devices.
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "comm/runtime.h"
#include "core/error.h"
#include "core/settings.h"
#include "diagnose/probe/probe.h"
#include "diagnose/probe/self_messages.h"
#include "transport/rails/rails.h"
#include "transport/registry.h"
#include "transport/transport.h"

namespace ropewalk::diagnose::probe {
namespace {

namespace rails = transport::rails;

// Those that can be made are there in milliseconds.
constexpr std::chrono::seconds kUpTime{3};

// A check for each rail between this host and itself.
void look_at_each(transport::Transport& over, Checks& checks) {
  const std::unique_ptr<transport::Listener> listener = over.listen(0);
  const std::unique_ptr<transport::Connector> connector = over.connect(0, listener->handle());
  const std::unique_ptr<transport::SendConnection> sender = connector->poll();
  std::unique_ptr<transport::ReceiveConnection> receiver;
  std::vector<rails::RailReport> found;
  const auto end = std::chrono::steady_clock::now() + kUpTime;
  for (bool all = false; !all && std::chrono::steady_clock::now() < end;) {
    if (receiver == nullptr) receiver = listener->accept();
    all = sender->ready();
    found = rails::report(*sender);
    for (const rails::RailReport& rail : found) all = all && rail.up;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  for (const rails::RailReport& rail : found) {
    Check check{.what = rail.name};
    check.found = rail.up ? "connected and verified" : "no rail: " + rail.why;
    if (!rail.up) {
      check.outcome = Outcome::kDegraded;
      check.cause = "look at the device by itself; the others carry all there is meanwhile";
    }
    checks.push_back(std::move(check));
  }
}

}  // namespace

Checks several_devices() {
  Config config = comm::Runtime::process().config();
  config.set("FAULTY", "", "doctor");
  Checks checks;
  try {
    const std::unique_ptr<transport::Transport> over = transport::make_transport("rails", config);
    if (over->num_devices() == 0) {
      return {{.what = "devices", .outcome = Outcome::kSkipped, .found = over->why_no_devices()}};
    }
    checks.push_back(self_messages(
        *over, 0, fmt::format("{}; this host reaches itself", over->properties(0).name),
        "the devices by themselves are the first to look at; RAILS names them",
        "no device reaches this host from itself, or a firewall drops what it sends"));
    look_at_each(*over, checks);
  } catch (const Error& error) {
    checks.push_back({.what = "devices",
                      .outcome = Outcome::kFailed,
                      .found = error.what(),
                      .cause = "look at RAILS and SOCKET_IFNAME"});
  }
  return checks;
}

}  // namespace ropewalk::diagnose::probe
