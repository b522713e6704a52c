#include "check_plugin/session.h"

#include <signal.h>  // NOLINT(modernize-deprecated-headers): kill is POSIX's
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>

#include "core/error.h"

namespace ropewalk::check_plugin {
namespace {

// The logger has no argument for them.
ProcessPage* log_page = nullptr;
bool log_shown = false;

__attribute__((format(printf, 5, 6))) void take_log(int level, unsigned long /*subsystems*/,
                                                    const char* file, int line, const char* format,
                                                    ...) {
  std::array<char, kTextBytes> text{};
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text.data(), text.size(), format, arguments);
  va_end(arguments);
  if (level == abi::kLogWarn && log_page != nullptr) {
    static std::mutex guard;
    const std::lock_guard lock(guard);
    log_page->log.add(present_call(), text.data());
  }
  if (log_shown) {
    fprintf(stderr, "[%d] %s:%d %s\n", level, file == nullptr ? "" : file, line, text.data());
  }
}

}  // namespace

Session::Session(const Options& options, Page& page, int process)
    : options_(options), page_(page), process_(process) {
  log_page = &own();
  log_shown = options.log;
}

void Session::load() {
  try {
    plugin_ = std::make_unique<Plugin>(options_.file, options_.version, own());
  } catch (const Error& error) {
    if (error.code() == Errc::kSystem) throw Failed{"the library loads", error.what()};
    throw Failed{"a network plugin", error.what()};
  }
}

abi::Result Session::init(void** context) {
  // Any number, the same in all processes of a communicator.
  constexpr std::uint64_t kFirstCommunicator = 0x726f706577616c6bULL;
  return plugin_->init(context, kFirstCommunicator + contexts_++, &take_log);
}

void* Session::new_context() {
  void* context = nullptr;
  expect(init(&context), Call::kInit);
  return context;
}

void Session::end_context(void* context) {
  if (plugin_->has_contexts()) expect(plugin_->finalize(context), Call::kFinalize);
}

void Session::start(bool keeps_log) {
  if (plugin_ == nullptr) load();
  context_ = new_context();
  device_count_ = kUnwritten;
  expect(plugin_->devices(&device_count_), Call::kDevices);
  if (device_count_ <= options_.device) {
    throw Failed{fmt::format("device {}", options_.device),
                 fmt::format("the count from devices: {}", output(device_count_))};
  }
  expect(plugin_->properties(options_.device, properties_), Call::kGetProperties);
  if (!keeps_log) own().log.clear();
}

void Session::expect(abi::Result result, Call call) const {
  if (result == abi::kSuccess) return;
  throw Failed{fmt::format("success from {}", name(call)), describe(result)};
}

void Session::check_stopped() const {
  if (page_.stop.load(std::memory_order_relaxed) || thread_failed_.load()) throw Stopped{};
}

void Session::yield_or_fail(std::string_view expected, Clock::time_point begin) const {
  check_stopped();
  if (Clock::now() - begin > options_.timeout) {
    throw Failed{
        std::string(expected),
        fmt::format("not within {} s", static_cast<double>(options_.timeout.count()) / 1000)};
  }
  sched_yield();
}

void Session::meet() {
  const std::uint64_t mine = own().meetings.fetch_add(1) + 1;
  // What the other child waits for has a limit, which ends this too. It may need this core.
  constexpr int kYields = 200;
  for (int i = 0; other().meetings.load() < mine; ++i) {
    check_stopped();
    if (i < kYields) {
      sched_yield();
    } else {
      usleep(20);
    }
  }
}

void Session::meet_at_end() {
  own().done.store(true);
  if (own().ends_alone.load()) return;
  while (!other().done.load() && !other().meant_to_die.load()) {
    check_stopped();
    usleep(100);
  }
}

bool Session::other_gone() { return kill(other().pid.load(), 0) != 0; }

void Session::tell(std::span<const std::byte> bytes) {
  RW_ASSERT(bytes.size() <= kMailBytes);
  std::copy(bytes.begin(), bytes.end(), own().mail.begin());
}

std::span<const std::byte> Session::heard(std::size_t bytes) {
  return std::span(other().mail).first(bytes);
}

void Session::in_thread(const std::function<void()>& body) { in_threads({body}); }

void Session::in_threads(const std::vector<std::function<void()>>& bodies) {
  std::exception_ptr first;
  std::mutex guard;
  std::vector<std::thread> threads;
  threads.reserve(bodies.size());
  for (const std::function<void()>& body : bodies) {
    threads.emplace_back([this, &body, &first, &guard] {
      own_thread();
      try {
        body();
      } catch (...) {
        const std::lock_guard lock(guard);
        if (!first) first = std::current_exception();
        thread_failed_.store(true);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace ropewalk::check_plugin
