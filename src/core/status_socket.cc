#include "core/status_socket.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "core/random.h"
#include "core/trace_signal.h"
#include "core/unix_socket.h"

namespace ropewalk {
namespace {

// Who does not ask within this time, or reads no more for as long, is dropped.
constexpr std::chrono::seconds kPatience{5};
// Of askers at once; further ones wait in the socket's queue.
constexpr std::size_t kMaxAskers = 8;
constexpr std::size_t kMaxQuestion = 64;
constexpr std::string_view kQuestion = "calls ";

std::string random_status_name() {
  std::uint64_t random = 0;
  fill_random(std::as_writable_bytes(std::span(&random, 1)));
  return fmt::format("ropewalk-status-{}-{}-{:016x}", geteuid(), getpid(), random);
}

FileDescriptor listen_for_status() {
  FileDescriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0),
                        FileDescriptor::InForkedChild::kClosed);
  if (!socket) throw system_error(errno, "socket for `ropewalk status`");
  const UnixAddress address = abstract_address(random_status_name());
  if (bind(socket.get(), address.get(), address.bytes) != 0 ||
      listen(socket.get(), SOMAXCONN) != 0) {
    throw system_error(errno, "listening for `ropewalk status`");
  }
  return socket;
}

// "calls 12\n": how many; nothing when it is no question.
std::optional<std::size_t> calls_asked_for(std::string_view line) {
  if (!line.starts_with(kQuestion) || !line.ends_with('\n')) return std::nullopt;
  line = line.substr(kQuestion.size(), line.size() - kQuestion.size() - 1);
  std::size_t count = 0;
  const auto [end, error] = std::from_chars(line.begin(), line.end(), count);
  if (error != std::errc() || end != line.end()) return std::nullopt;
  return count;
}

}  // namespace

StatusSocket::StatusSocket(EventLoop& loop, Answer answer, std::string_view signal,
                           std::function<void()> write)
    : loop_(loop),
      answer_(std::move(answer)),
      socket_(listen_for_status()),
      signal_fd_(trace_signal::watch(signal)),
      write_(std::move(write)) {}

void StatusSocket::start() {
  key_ = loop_.add(socket_.get(), EPOLLIN, [this](std::uint32_t) { accept(); });
  if (signal_fd_ < 0) return;
  signal_key_ = loop_.add(signal_fd_, EPOLLIN, [this](std::uint32_t) {
    if (trace_signal::take(signal_fd_)) write_();
  });
}

void StatusSocket::stop() noexcept {
  if (key_ == 0) return;
  while (!askers_.empty()) drop(askers_.begin()->first);
  loop_.forget(key_, socket_.get());
  if (signal_key_ != 0) loop_.forget(signal_key_, signal_fd_);
  key_ = signal_key_ = 0;
}

void StatusSocket::accept() {
  while (askers_.size() < kMaxAskers) {
    FileDescriptor socket(accept4(socket_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC),
                          FileDescriptor::InForkedChild::kClosed);
    if (!socket) return;  // none, or no descriptor is left: the asker times out, and says so
    const UnixPeer peer = peer_of(socket.get());
    if (!peer.same_user && peer.user != 0) continue;
    const Number number = ++last_;
    Asker& asker = askers_[number];
    asker.socket = std::move(socket);
    asker.key =
        loop_.add(asker.socket.get(), EPOLLIN, [this, number](std::uint32_t) { go_on(number); });
    asker.timer = loop_.after(kPatience, [this, number] { expired(number); });
  }
}

void StatusSocket::expired(Number number) {
  askers_.at(number).timer = {};
  drop(number);
}

void StatusSocket::drop(Number number) {
  const auto at = askers_.find(number);
  Asker& asker = at->second;
  if (asker.timer.second != 0) loop_.cancel(asker.timer);
  loop_.forget(asker.key, asker.socket.get());
  const bool full = askers_.size() == kMaxAskers;
  askers_.erase(at);
  if (!full || key_ == 0) return;
  loop_.defer([weak = weak_from_this()] {
    const std::shared_ptr<StatusSocket> self = weak.lock();
    if (self != nullptr && self->key_ != 0) self->accept();
  });
}

void StatusSocket::go_on(Number number) {
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
      loop_.cancel(asker.timer);
      asker.timer = loop_.after(kPatience, [this, number] { expired(number); });
      loop_.change(asker.key, asker.socket.get(), EPOLLOUT);
      return;
    }
    if (sent < 0) break;
    asker.sent += static_cast<std::size_t>(sent);
  }
  drop(number);
}

StatusSocket::Question StatusSocket::read_question(Asker& asker) {
  std::array<char, kMaxQuestion> bytes{};
  const ssize_t got = recv(asker.socket.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) {
    return Question::kIncomplete;
  }
  if (got <= 0) return Question::kNone;
  asker.question.append(bytes.data(), static_cast<std::size_t>(got));
  if (asker.question.size() > kMaxQuestion) return Question::kNone;
  if (!asker.question.ends_with('\n')) return Question::kIncomplete;
  const std::optional<std::size_t> calls = calls_asked_for(asker.question);
  if (!calls.has_value()) return Question::kNone;
  asker.asked = true;
  asker.answer = answer_(*calls);
  return Question::kAnswered;
}

}  // namespace ropewalk
