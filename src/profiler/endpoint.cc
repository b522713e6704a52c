#include "profiler/endpoint.h"

#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <exception>
#include <utility>

#include "core/log.h"
#include "profiler/report_file.h"

namespace ropewalk::profiler {

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
  auto server = std::make_shared<StatusSocket>(
      loop_, [this](std::size_t calls) { return tell(calls); }, signal,
      [this] { dump("at a signal"); });
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
