#include "transport/rails/keeper.h"

#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "core/error.h"
#include "core/log.h"

namespace ropewalk::transport::rails {
namespace {

constexpr int kIdleMs = 10;
constexpr int kBusyMs = 1;
constexpr auto kSettleTime = std::chrono::seconds(2);

}  // namespace

// ---- links ---------------------------------------------------------------------------------

LinkEvents::LinkEvents()
    : socket_(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_ROUTE)) {
  sockaddr_nl address{};
  address.nl_family = AF_NETLINK;
  address.nl_groups = RTMGRP_LINK;
  if (!socket_ ||
      bind(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    log::info(log::kNet, "rails: {}: links are not watched",
              system_error(errno, "netlink socket").what());
    socket_.close();
  }
}

std::vector<LinkEvents::Event> LinkEvents::poll() {
  std::vector<Event> events;
  alignas(nlmsghdr) std::array<std::byte, 16384> buffer;
  while (socket_) {
    const ssize_t got = recv(socket_.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;  // an overflow (ENOBUFS), too: the next event tells
    auto left = static_cast<unsigned>(got);
    for (const auto* message = reinterpret_cast<const nlmsghdr*>(buffer.data());
         NLMSG_OK(message, left); message = NLMSG_NEXT(message, left)) {
      if (message->nlmsg_type != RTM_NEWLINK && message->nlmsg_type != RTM_DELLINK) continue;
      const auto* link = static_cast<const ifinfomsg*>(NLMSG_DATA(message));
      auto room = static_cast<unsigned>(IFLA_PAYLOAD(message));
      for (const rtattr* entry = IFLA_RTA(link); RTA_OK(entry, room);
           entry = RTA_NEXT(entry, room)) {
        if (entry->rta_type != IFLA_IFNAME) continue;
        const auto* name = static_cast<const char*>(RTA_DATA(entry));
        const bool up = message->nlmsg_type == RTM_NEWLINK && (link->ifi_flags & IFF_UP) != 0 &&
                        (link->ifi_flags & IFF_RUNNING) != 0;
        events.push_back({std::string(name, strnlen(name, RTA_PAYLOAD(entry))), up});
      }
    }
  }
  return events;
}

// ---- the thread ----------------------------------------------------------------------------

Keeper::~Keeper() {
  settle();
  stop_ = true;
  wake();
  if (thread_.joinable()) thread_.join();
}

void Keeper::add(std::shared_ptr<Tended> tended) {
  {
    const Lock lock(mutex_);
    all_.push_back(std::move(tended));
    if (!thread_.joinable()) {
      wake_ = FileDescriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
      if (!wake_) throw system_error(errno, "eventfd");
      thread_ = std::thread([this] { run(); });
    }
  }
  wake();
}

void Keeper::wake() {
  const std::uint64_t one = 1;
  if (wake_) (void)!::write(wake_.get(), &one, sizeof one);
}

void Keeper::settle() {
  if (!thread_.joinable()) return;
  const Clock::time_point deadline = Clock::now() + kSettleTime;
  // A whole round from here on counts.
  const std::uint64_t first = rounds_ + 2;
  while (Clock::now() < deadline && (rounds_ < first || closing_ > 0)) {
    wake();
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

void Keeper::run() {
  LinkEvents links;
  std::vector<std::shared_ptr<Tended>> round;
  bool busy = true;
  while (!stop_) {
    std::array<pollfd, 2> waits = {pollfd{wake_.get(), POLLIN, 0}, pollfd{links.fd(), POLLIN, 0}};
    const int limit = busy ? kBusyMs : round.empty() ? -1 : kIdleMs;
    (void)::poll(waits.data(), waits.size(), limit);
    if ((waits[0].revents & POLLIN) != 0) {
      std::uint64_t count = 0;
      (void)!::read(wake_.get(), &count, sizeof count);
    }
    {
      const Lock lock(mutex_);
      round = all_;
    }
    for (const LinkEvents::Event& event : links.poll()) {
      for (const std::shared_ptr<Tended>& each : round) {
        each->link_changed(event.interface, event.up);
      }
    }
    busy = false;
    int closing = 0;
    std::vector<std::shared_ptr<Tended>> over;
    for (const std::shared_ptr<Tended>& each : round) {
      switch (each->tend(Clock::now())) {
        case Tended::Tending::kIdle: break;
        case Tended::Tending::kClosing: ++closing; [[fallthrough]];
        case Tended::Tending::kBusy: busy = true; break;
        case Tended::Tending::kOver: over.push_back(each); break;
      }
    }
    if (!over.empty()) {
      const Lock lock(mutex_);
      std::erase_if(all_, [&](const std::shared_ptr<Tended>& each) {
        return std::ranges::find(over, each) != over.end();
      });
      round = all_;
    }
    closing_ = closing;
    ++rounds_;
  }
}

}  // namespace ropewalk::transport::rails
