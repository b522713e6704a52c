#include "bootstrap/connection.h"

#include <sys/socket.h>

#include <array>
#include <cerrno>

namespace ropewalk::bootstrap {

std::unique_ptr<Connection> Connection::connect(Service& service, const SocketAddress& peer,
                                                Session session,
                                                Service::Clock::time_point deadline, Owner owner) {
  std::unique_ptr<Connection> made(
      new Connection(service, start_connect(peer), std::move(session), true, std::move(owner)));
  made->start(deadline);
  return made;
}

std::unique_ptr<Connection> Connection::accept(Service& service, FileDescriptor socket,
                                               Session session, Service::Clock::time_point deadline,
                                               Owner owner) {
  std::unique_ptr<Connection> made(
      new Connection(service, std::move(socket), std::move(session), false, std::move(owner)));
  made->start(deadline);
  return made;
}

Connection::Connection(Service& service, FileDescriptor socket, Session session, bool connecting,
                       Owner owner)
    : service_(service),
      socket_(std::move(socket)),
      session_(std::move(session)),
      connecting_(connecting),
      owner_(std::move(owner)) {}

void Connection::start(Service::Clock::time_point deadline) {
  wants_write_ = connecting_ || !session_.output().empty();
  key_ = service_.add(socket_.get(), EPOLLIN | (wants_write_ ? std::uint32_t{EPOLLOUT} : 0U),
                      [this](std::uint32_t events) { on_events(events); });
  if (deadline != Service::Clock::time_point::max()) {
    timer_ = service_.at(deadline, [this] {
      timer_.reset();
      fail(Errc::kTimeout, false, connecting_ ? "no answer to connecting" : "no answer");
    });
  }
}

Connection::~Connection() {
  *alive_ = false;
  if (timer_) service_.cancel(*timer_);
  if (key_ != 0) service_.forget(key_, socket_.get());
}

void Connection::fail(Errc code, bool refused, const std::string& reason) {
  if (ended_) return;
  ended_ = true;
  if (timer_) service_.cancel(*timer_);
  timer_.reset();
  service_.forget(key_, socket_.get());
  key_ = 0;
  socket_.close();
  // Moved: the owner may destroy this object, and the function with it, while it runs.
  const auto tell = std::move(owner_.on_closed);
  if (tell) tell({was_established_, refused, code, reason});
}

void Connection::on_events(std::uint32_t events) {
  const std::shared_ptr<bool> alive = alive_;
  if (connecting_) {
    if (const int error = connect_error(socket_); error != 0) {
      fail(Errc::kSystem, error == ECONNREFUSED, system_words(error));
      return;
    }
    if ((events & EPOLLOUT) == 0) return;
    connecting_ = false;
  }
  if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) {
    read_all();
    if (!*alive || ended_) return;
  }
  write_some();
}

void Connection::read_all() {
  const std::shared_ptr<bool> alive = alive_;
  // One thread serves all connections, so that one buffer does.
  static thread_local std::array<std::byte, 65536> buffer;
  std::vector<std::byte> message;
  // Bounded: a fast sender must not keep the others from being served.
  for (int round = 0; round < 16; ++round) {
    const ssize_t got = ::recv(socket_.get(), buffer.data(), buffer.size(), 0);
    if (got < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return;
      fail(Errc::kPeerLost, false, system_words(errno));
      return;
    }
    if (got == 0) {
      fail(Errc::kPeerLost, false, "the connection was closed");
      return;
    }
    try {
      session_.feed(std::span(buffer).first(static_cast<std::size_t>(got)));
      if (session_.established() && !was_established_) {
        was_established_ = true;
        if (timer_) service_.cancel(*timer_);
        timer_.reset();
        write_some();
        if (!*alive || ended_) return;
        if (owner_.on_established) {
          const auto tell = owner_.on_established;
          tell();
        }
        if (!*alive || ended_) return;
      }
      while (session_.next(message)) {
        if (owner_.on_message) {
          const auto tell = owner_.on_message;
          tell(message);
        }
        if (!*alive || ended_) return;
      }
    } catch (const Error& error) {
      if (!*alive) throw;
      fail(error.code(), false, error.what());
      return;
    }
    if (static_cast<std::size_t>(got) < buffer.size()) return;
  }
}

void Connection::send(std::span<const std::byte> payload) {
  if (ended_) return;
  const bool idle = session_.output().empty();
  session_.send(payload);
  if (idle) write_some();
}

void Connection::write_some() {
  if (connecting_) return;
  while (!session_.output().empty()) {
    const std::span<const std::byte> out = session_.output();
    const ssize_t wrote = ::send(socket_.get(), out.data(), out.size(), MSG_NOSIGNAL);
    if (wrote < 0) {
      if (errno == EINTR) continue;
      // An error here is met again by reading, after what the peer had still to say.
      break;
    }
    session_.consume(static_cast<std::size_t>(wrote));
  }
  want_write(!session_.output().empty());
}

void Connection::want_write(bool wanted) {
  if (wanted == wants_write_ || ended_) return;
  wants_write_ = wanted;
  service_.change(key_, socket_.get(), EPOLLIN | (wanted ? std::uint32_t{EPOLLOUT} : 0U));
}

}  // namespace ropewalk::bootstrap
