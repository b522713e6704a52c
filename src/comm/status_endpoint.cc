#include "comm/status_endpoint.h"

#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "bootstrap/service.h"
#include "comm/call_report.h"
#include "comm/communicator.h"
#include "comm/trace_signal.h"
#include "core/error.h"
#include "core/log.h"
#include "core/random.h"
#include "core/unix_socket.h"

namespace ropewalk::comm {
namespace {

// Who does not ask within this time, or reads no more for as long, is dropped.
constexpr std::chrono::seconds kPatience{5};
// Of askers at once; further ones wait in the socket's queue.
constexpr std::size_t kMaxAskers = 8;
constexpr std::size_t kMaxQuestion = 64;
constexpr std::string_view kQuestion = "calls ";

std::string random_name() {
  std::uint64_t random = 0;
  fill_random(std::as_writable_bytes(std::span(&random, 1)));
  return fmt::format("ropewalk-status-{}-{}-{:016x}", geteuid(), getpid(), random);
}

FileDescriptor listen_here() {
  FileDescriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0),
                        FileDescriptor::InForkedChild::kClosed);
  if (!socket) throw system_error(errno, "socket for `ropewalk status`");
  const UnixAddress address = abstract_address(random_name());
  if (bind(socket.get(), address.get(), address.bytes) != 0 ||
      listen(socket.get(), SOMAXCONN) != 0) {
    throw system_error(errno, "listening for `ropewalk status`");
  }
  return socket;
}

// "calls 12\n": how many; nothing when it is no question.
std::optional<std::size_t> asked_for(std::string_view line) {
  if (!line.starts_with(kQuestion) || !line.ends_with('\n')) return std::nullopt;
  line = line.substr(kQuestion.size(), line.size() - kQuestion.size() - 1);
  std::size_t count = 0;
  const auto [end, error] = std::from_chars(line.begin(), line.end(), count);
  if (error != std::errc() || end != line.end()) return std::nullopt;
  return count;
}

}  // namespace

// Made by any thread; everything else on the service thread.
class StatusEndpoint::Server : public std::enable_shared_from_this<Server> {
 public:
  Server(bootstrap::Service& service, std::shared_ptr<ServedComms> shared, FileDescriptor socket,
         int signal_fd)
      : service_(service),
        shared_(std::move(shared)),
        socket_(std::move(socket)),
        signal_fd_(signal_fd) {}
  ~Server() { stop(); }
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  void start() {
    key_ = service_.add(socket_.get(), EPOLLIN, [this](std::uint32_t) { accept(); });
    if (signal_fd_ >= 0) {
      signal_key_ = service_.add(signal_fd_, EPOLLIN, [this](std::uint32_t) { dump(); });
    }
  }

  void stop() noexcept {
    if (key_ == 0) return;
    while (!askers_.empty()) drop(askers_.begin()->first);
    service_.forget(key_, socket_.get());
    if (signal_key_ != 0) service_.forget(signal_key_, signal_fd_);
    key_ = signal_key_ = 0;
  }

 private:
  struct Asker {
    FileDescriptor socket;
    std::uint64_t key = 0;
    bootstrap::Service::TimerKey timer;
    std::string question;
    std::string answer;
    std::size_t sent = 0;
    bool asked = false;
  };
  using Number = std::uint64_t;

  void accept() {
    while (askers_.size() < kMaxAskers) {
      FileDescriptor socket(accept4(socket_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC),
                            FileDescriptor::InForkedChild::kClosed);
      if (!socket) return;  // none, or no descriptor is left: the asker waits in vain, and tells so
      const UnixPeer peer = peer_of(socket.get());
      if (!peer.same_user && peer.user != 0) continue;
      const Number number = ++last_;
      Asker& asker = askers_[number];
      asker.socket = std::move(socket);
      asker.key = service_.add(asker.socket.get(), EPOLLIN,
                               [this, number](std::uint32_t) { go_on(number); });
      asker.timer = service_.after(kPatience, [this, number] { expired(number); });
    }
  }

  void expired(Number number) {
    askers_.at(number).timer = {};
    drop(number);
  }

  void drop(Number number) {
    const auto at = askers_.find(number);
    Asker& asker = at->second;
    if (asker.timer.second != 0) service_.cancel(asker.timer);
    service_.forget(asker.key, asker.socket.get());
    const bool full = askers_.size() == kMaxAskers;
    askers_.erase(at);
    if (!full || key_ == 0) return;
    service_.defer([weak = weak_from_this()] {
      const std::shared_ptr<Server> self = weak.lock();
      if (self != nullptr && self->key_ != 0) self->accept();
    });
  }

  void go_on(Number number) {
    Asker& asker = askers_.at(number);
    if (!asker.asked) {
      switch (read_question(asker)) {
        case Question::kIncomplete: return;
        case Question::kNone: drop(number); return;
        case Question::kAnswered: break;
      }
    }
    while (asker.sent < asker.answer.size()) {
      const ssize_t sent = send(asker.socket.get(), asker.answer.data() + asker.sent,
                                asker.answer.size() - asker.sent, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent < 0 && errno == EINTR) continue;
      if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
        service_.cancel(asker.timer);
        asker.timer = service_.after(kPatience, [this, number] { expired(number); });
        service_.change(asker.key, asker.socket.get(), EPOLLOUT);
        return;
      }
      if (sent < 0) break;
      asker.sent += static_cast<std::size_t>(sent);
    }
    drop(number);
  }

  enum class Question : std::uint8_t { kIncomplete, kNone, kAnswered };
  Question read_question(Asker& asker) {
    std::array<char, kMaxQuestion> bytes{};
    const ssize_t got = recv(asker.socket.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) {
      return Question::kIncomplete;
    }
    if (got <= 0) return Question::kNone;
    asker.question.append(bytes.data(), static_cast<std::size_t>(got));
    if (asker.question.size() > kMaxQuestion) return Question::kNone;
    if (!asker.question.ends_with('\n')) return Question::kIncomplete;
    const std::optional<std::size_t> count = asked_for(asker.question);
    if (!count.has_value()) return Question::kNone;
    asker.asked = true;
    const Lock lock(shared_->mutex);
    for (const Communicator* comm : shared_->comms) {
      asker.answer += call_report(*comm, *count);
      asker.answer += '\n';
    }
    return Question::kAnswered;
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
  FileDescriptor socket_;
  int signal_fd_;
  std::uint64_t key_ = 0;
  std::uint64_t signal_key_ = 0;
  Number last_ = 0;
  std::map<Number, Asker> askers_;
};

StatusEndpoint::StatusEndpoint(bootstrap::Context& context) : service_(context) {}

StatusEndpoint::~StatusEndpoint() = default;

void StatusEndpoint::add(const Communicator& comm) noexcept {
  try {
    service_.add(comm, [&](bootstrap::Service& service, std::shared_ptr<ServedComms> shared) {
      return std::make_shared<Server>(
          service, std::move(shared), listen_here(),
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
