#include "bootstrap/listener.h"

#include <cerrno>

#include "core/log.h"

namespace ropewalk::bootstrap {

Listener::Listener(Service& service, FileDescriptor socket, const Secret& secret,
                   const ServiceId& id, Accepted accepted, Starved starved)
    : service_(service),
      socket_(std::move(socket)),
      secret_(secret),
      id_(id),
      accepted_(std::move(accepted)),
      starved_(std::move(starved)) {
  key_ = service_.add(socket_.get(), EPOLLIN, [this](std::uint32_t) { on_ready(); });
}

Listener::~Listener() { stop(); }

void Listener::stop() {
  if (key_ == 0) return;
  if (paused_) service_.cancel(resume_);
  service_.forget(key_, socket_.get());
  key_ = 0;
  pending_.clear();
}

void Listener::on_ready() {
  // Bounded, so that a flood leaves time for the handshakes in progress.
  for (int i = 0; i < 64; ++i) {
    int error = 0;
    FileDescriptor socket = accept_from(socket_, nullptr, &error);
    if (socket) {
      admit(std::move(socket));
      continue;
    }
    if (error == EAGAIN || error == EWOULDBLOCK) return;
    log::warn("bootstrap: accept: {}", system_words(error));
    // Out of descriptors or memory. The connection stays in the queue: without a pause the loop
    // would spin on it.
    const auto now = Service::Clock::now();
    if (!starved_since_) starved_since_ = now;
    const bool strangers = !pending_.empty() && now - *starved_since_ < kStarvedTime;
    if (strangers && now - pending_.front().since > kHandshakeTime) pending_.pop_front();
    pause();
    if (!strangers && starved_)
      starved_("accept: " + system_words(error));  // may end this listener
    return;
  }
}

void Listener::pause() {
  paused_ = true;
  service_.change(key_, socket_.get(), 0);
  resume_ = service_.after(std::chrono::milliseconds(20), [this] {
    paused_ = false;
    service_.change(key_, socket_.get(), EPOLLIN);
  });
}

void Listener::admit(FileDescriptor socket) {
  if (pending_.size() >= kMaxPending) pending_.pop_front();
  pending_.push_back({nullptr, Service::Clock::now()});
  const auto entry = std::prev(pending_.end());
  Connection::Owner owner;
  owner.on_established = [this, entry] {
    std::unique_ptr<Connection> connection = std::move(entry->connection);
    pending_.erase(entry);
    starved_since_.reset();
    accepted_(std::move(connection));
  };
  owner.on_closed = [this, entry](const Closing&) {
    // Destroyed after this call, which it makes.
    const std::shared_ptr<Connection> gone = std::move(entry->connection);
    pending_.erase(entry);
    service_.defer([gone] {});
  };
  try {
    entry->connection =
        Connection::accept(service_, std::move(socket), Session::server(secret_, id_),
                           Service::Clock::now() + kProofTime, std::move(owner));
  } catch (const Error& error) {
    pending_.erase(entry);
    log::warn("bootstrap: accepting a connection: {}", error.what());
  }
}

}  // namespace ropewalk::bootstrap
