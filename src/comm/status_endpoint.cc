#include "comm/status_endpoint.h"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "bootstrap/service.h"
#include "comm/call_report.h"
#include "comm/communicator.h"
#include "core/log.h"
#include "core/status_socket.h"
#include "core/trace_signal.h"

namespace ropewalk::comm {

// Made by any thread; everything else on the service thread.
class StatusEndpoint::Server {
 public:
  Server(bootstrap::Service& service, std::shared_ptr<ServedComms> shared, int signal_fd)
      : service_(service),
        shared_(std::move(shared)),
        signal_fd_(signal_fd),
        socket_(std::make_shared<StatusSocket>(
            service, [this](std::size_t calls) { return tell(calls); })) {}
  ~Server() { stop(); }
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  void start() {
    socket_->start();
    if (signal_fd_ >= 0) {
      signal_key_ = service_.add(signal_fd_, EPOLLIN, [this](std::uint32_t) { dump(); });
    }
  }

  void stop() noexcept {
    socket_->stop();
    if (signal_key_ != 0) service_.forget(signal_key_, signal_fd_);
    signal_key_ = 0;
  }

 private:
  std::string tell(std::size_t calls) {
    std::string lines;
    const Lock lock(shared_->mutex);
    for (const Communicator* comm : shared_->comms) {
      lines += call_report(*comm, calls);
      lines += '\n';
    }
    return lines;
  }

  void dump() {
    if (!trace_signal::take(signal_fd_)) return;
    const Lock lock(shared_->mutex);
    for (const Communicator* comm : shared_->comms) {
      const std::string pattern = comm->config().text(Setting::kTraceFile);
      if (!pattern.empty()) write_call_report(*comm, pattern);
    }
  }

  bootstrap::Service& service_;
  std::shared_ptr<ServedComms> shared_;
  int signal_fd_;
  std::uint64_t signal_key_ = 0;
  std::shared_ptr<StatusSocket> socket_;
};

StatusEndpoint::StatusEndpoint(bootstrap::Context& context) : service_(context) {}

StatusEndpoint::~StatusEndpoint() = default;

void StatusEndpoint::add(const Communicator& comm) noexcept {
  try {
    service_.add(comm, [&](bootstrap::Service& service, std::shared_ptr<ServedComms> shared) {
      return std::make_shared<Server>(
          service, std::move(shared),
          trace_signal::watch(comm.config().text(Setting::kTraceSignal)));
    });
  } catch (const std::exception& error) {
    log::warn("rank {}: `ropewalk status` cannot ask this process: {}", comm.rank(), error.what());
  }
}

void StatusEndpoint::remove(const Communicator& comm) noexcept {
  try {
    service_.remove(comm);
  } catch (const std::exception& error) {
    log::warn("the end of the endpoint of `ropewalk status`: {}", error.what());
  }
}

}  // namespace ropewalk::comm
