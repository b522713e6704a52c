// Two hosts: network namespaces joined by pairs of virtual interfaces, each pair a subnet of its
// own, shaped by a token bucket. Gone with the object. Needs root, `ip` and `tc`.
#pragma once

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <string>
#include <vector>

#include "core/error.h"

namespace ropewalk::transport::rails::testing {

class TwoHosts {
 public:
  /// MB/s of each pair, in both directions; 0: as fast as it is.
  explicit TwoHosts(const std::vector<int>& rates) : tag_(std::to_string(getpid())) {
    names_ = {"rwr" + tag_ + "a", "rwr" + tag_ + "b", "rwr" + tag_ + "s"};
    ready_ = geteuid() == 0;
    for (const std::string& name : names_) {
      ready_ = ready_ && run("ip netns add " + name) && run("ip -n " + name + " link set lo up");
    }
    // A third namespace stands between, as a switch: a pair that it does not join is silent, and
    // its ends know nothing of it.
    for (std::size_t i = 0; i < rates.size() && ready_; ++i) {
      ready_ = run(fmt::format("ip -n {} link add br{} type bridge", names_[2], i)) &&
               run(fmt::format("ip -n {} link set br{} up", names_[2], i));
      for (int host = 0; host < 2 && ready_; ++host) {
        const std::string& name = names_[static_cast<std::size_t>(host)];
        const std::string link = interface(static_cast<int>(i), host);
        ready_ =
            run(fmt::format("ip link add {0} netns {1} type veth peer name {0}s netns {2}", link,
                            name, names_[2])) &&
            run(fmt::format("ip -n {} link set {}s master br{} up", names_[2], link, i)) &&
            run(fmt::format("ip -n {} addr add 10.233.{}.{}/24 dev {}", name, i, host + 1, link)) &&
            run(fmt::format("ip -n {} link set {} up", name, link));
        if (rates[i] == 0) continue;
        shaped_ =
            shaped_ && run(fmt::format("tc -n {} qdisc add dev {} root tbf rate {}mbit burst 128kb "
                                       "latency 10ms",
                                       name, link, 8 * rates[i]));
      }
    }
  }
  ~TwoHosts() {
    for (const std::string& name : names_) run("ip netns del " + name);
  }
  TwoHosts(const TwoHosts&) = delete;
  TwoHosts& operator=(const TwoHosts&) = delete;

  [[nodiscard]] bool ready() const { return ready_; }
  [[nodiscard]] bool shaped() const { return shaped_; }

  [[nodiscard]] std::string interface(int pair, int host) const {
    return fmt::format("rw{}{}{}", "ab"[host], pair, tag_);
  }
  /// The interface of a host goes down: both ends of that link know at once.
  void down(int pair, int host) const { set(pair, host, "down"); }
  void up(int pair, int host) const { set(pair, host, "up"); }
  /// The switch drops all between a host and the other.
  void silence(int pair, int host) const {
    run(fmt::format("ip -n {} link set {}s nomaster", names_[2], interface(pair, host)));
  }
  void join(int pair, int host) const {
    run(fmt::format("ip -n {} link set {}s master br{}", names_[2], interface(pair, host), pair));
  }

  /// Moves the calling thread, and those that it starts, to a host.
  void enter(int host) const {
    const std::string path = "/var/run/netns/" + names_[static_cast<std::size_t>(host)];
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0 || setns(fd, CLONE_NEWNET) != 0) throw system_error(errno, "enter " + path);
    close(fd);
  }

 private:
  static bool run(const std::string& command) {
    return std::system((command + " >/dev/null 2>&1").c_str()) == 0;
  }
  void set(int pair, int host, const char* state) const {
    run(fmt::format("ip -n {} link set {} {}", names_[static_cast<std::size_t>(host)],
                    interface(pair, host), state));
  }
  const std::string tag_;
  std::array<std::string, 3> names_;
  bool ready_ = false;
  bool shaped_ = true;
};

}  // namespace ropewalk::transport::rails::testing
