#include "profiler/endpoint.h"

#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <exception>
#include <utility>

#include "core/log.h"
#include "core/status_socket.h"
#include "core/trace_signal.h"
#include "profiler/report_file.h"

namespace ropewalk::profiler {

// Made by any thread; everything else on the loop thread.
class Endpoint::Server {
 public:
  Server(Endpoint& endpoint, int signal_fd)
      : endpoint_(endpoint),
        signal_fd_(signal_fd),
        socket_(std::make_shared<StatusSocket>(
            endpoint.loop_, [&endpoint](std::size_t calls) { return endpoint.tell(calls); })) {}
  ~Server() { stop(); }
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  void start() {
    socket_->start();
    if (signal_fd_ < 0) return;
    signal_key_ = endpoint_.loop_.add(signal_fd_, EPOLLIN, [this](std::uint32_t) {
      if (trace_signal::take(signal_fd_)) endpoint_.dump("at a signal");
    });
  }

  void stop() noexcept {
    socket_->stop();
    if (signal_key_ != 0) endpoint_.loop_.forget(signal_key_, signal_fd_);
    signal_key_ = 0;
  }

 private:
  Endpoint& endpoint_;
  const int signal_fd_;
  std::uint64_t signal_key_ = 0;
  const std::shared_ptr<StatusSocket> socket_;
};

Endpoint& Endpoint::instance() {
  static Endpoint& endpoint = []() -> Endpoint& {
    auto& made = *new Endpoint();
    (void)std::atexit([] {
      Endpoint& all = instance();
      if (getpid() == all.process_) all.dump("at the program's end");
    });
    return made;
  }();
  return endpoint;
}

Endpoint::Endpoint() : process_(getpid()), loop_("profiler") {}

void Endpoint::add(const Recorder& recorder, const std::string& pattern) {
  const Lock lock(mutex_);
  recorders_[&recorder] = pattern;
}

void Endpoint::listen(std::string_view signal) {
  const Lock beginning(server_mutex_);
  if (server_ != nullptr) return;
  auto server = std::make_shared<Server>(*this, trace_signal::watch(signal));
  loop_.post([this, server] {
    loop_.keep(server);
    server->start();
  });
  server_ = std::move(server);
}

void Endpoint::remove(const Recorder& recorder) {
  const Lock ending(server_mutex_);
  {
    const Lock lock(mutex_);
    if (recorders_.erase(&recorder) == 0 || !recorders_.empty()) return;
  }
  if (server_ == nullptr) return;
  loop_.post([this, server = std::move(server_)] {
    server->stop();
    loop_.drop(server.get());
  });
  server_ = nullptr;
}

std::string Endpoint::tell(std::size_t calls) {
  std::string lines;
  const Lock lock(mutex_);
  for (const auto& [recorder, pattern] : recorders_) {
    if (!recorder->has_rank()) continue;  // up to version 3, before its first operation
    lines += recorder->report(calls);
    lines += '\n';
  }
  return lines;
}

void Endpoint::dump(const char* when) {
  const Lock lock(mutex_);
  for (const auto& [recorder, pattern] : recorders_) {
    if (pattern.empty() || !recorder->has_rank()) continue;
    try {
      write_report(*recorder, pattern);
    } catch (const std::exception& error) {
      log::warn("profiler, {}: {}", when, error.what());
    }
  }
}

}  // namespace ropewalk::profiler
