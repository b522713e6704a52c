#include "monitor/job_ports.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <ctime>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bootstrap/service.h"
#include "core/error.h"
#include "core/log.h"
#include "core/socket.h"
#include "monitor/job_events.h"
#include "monitor/job_report.h"
#include "monitor/rank_summaries.h"

namespace ropewalk::monitor {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kRasProtocol = 2;
// Who says nothing, or reads nothing, for this long is dropped.
constexpr std::chrono::seconds kClientPatience{30};
// The longest that ranks may take to answer, and between looks whether they have.
constexpr std::chrono::milliseconds kAnswerTime{1000};
constexpr std::chrono::milliseconds kAnswerPeriod{5};
// Ranks that run are in different calls: one that is so much later still is absent.
constexpr std::chrono::milliseconds kAgainAfter{300};
constexpr std::size_t kMaxClients = 16;
constexpr std::size_t kMaxInput = 8192;
// How often those who monitor are told what is new, and what one may leave unread.
constexpr std::chrono::milliseconds kWatchPeriod{100};
constexpr std::size_t kMaxUnread = 64 << 10;

SocketAddress loopback(int port) {
  SocketAddress::HostBytes host{std::byte{127}, std::byte{0}, std::byte{0}, std::byte{1}};
  return SocketAddress::of(AF_INET, host, static_cast<std::uint16_t>(port), 0);
}

std::vector<std::string> upper_words(std::string_view line) {
  std::vector<std::string> words;
  bool inside = false;
  for (const char c : line) {
    const bool space = std::isspace(static_cast<unsigned char>(c)) != 0;
    if (!space && !inside) words.emplace_back();
    if (!space) words.back() += static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    inside = !space;
  }
  return words;
}

std::set<int> as_set(const std::vector<int>& ranks) { return {ranks.begin(), ranks.end()}; }

PeerStates states_of(const MonitoredComm& comm) {
  const bootstrap::FailureState& failure = comm.failure;
  return {comm.identity, as_set(failure.suspected()), failure.lost(), as_set(failure.left())};
}

bool is_number(const std::string& word) {
  return !word.empty() && std::ranges::all_of(word, [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace

// Made by any thread; everything else on the service thread.
class JobPorts::Server : public std::enable_shared_from_this<Server> {
 public:
  enum class Kind : std::uint8_t { kRas, kMetrics };
  struct Listening {
    Kind kind = Kind::kRas;
    FileDescriptor socket;
    std::uint64_t key = 0;
  };

  Server(bootstrap::Service& service, std::shared_ptr<ServedComms<MonitoredComm>> shared,
         std::vector<Listening> listening)
      : service_(service), shared_(std::move(shared)), listening_(std::move(listening)) {}
  ~Server() { stop(); }
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  void start() {
    for (Listening& each : listening_) {
      each.key =
          service_.add(each.socket.get(), EPOLLIN, [this, &each](std::uint32_t) { accept(each); });
    }
  }

  void stop() noexcept {
    while (!clients_.empty()) drop(clients_.begin()->first);
    for (Listening& each : listening_) {
      if (each.key != 0) service_.forget(each.key, each.socket.get());
      each.key = 0;
    }
    cancel(look_);
    cancel(watch_);
  }

  /// A communicator is removed, of which this is the last that was known.
  void departed(const PeerStates& last) {
    if (!job_ || !job_->knows(last.identity)) return;
    tell_events(job_->see(last));
    job_->forget(last.identity);
  }

 private:
  using Number = std::uint64_t;
  enum class Wants : std::uint8_t { kNothing, kText, kVerboseText, kJson, kMetrics };
  struct Client {
    FileDescriptor socket;
    Kind kind = Kind::kRas;
    std::uint64_t key = 0;
    bootstrap::Service::TimerKey timer;
    std::string input;
    std::string output;
    std::size_t sent = 0;
    bool json = false;
    bool ends = false;  // when the output is sent
    Wants wants = Wants::kNothing;
    std::set<JobEvent::Group> monitors;
    bool has_head = false;  // of HTTP
  };

  void cancel(bootstrap::Service::TimerKey& timer) noexcept {
    if (timer.second != 0) service_.cancel(timer);
    timer = {};
  }

  // ---- connections ----

  void accept(Listening& at) {
    while (clients_.size() < kMaxClients) {
      int error = 0;
      FileDescriptor socket = accept_from(at.socket, nullptr, &error);
      if (!socket) return;
      const Number number = ++last_;
      Client& client = clients_[number];
      client.kind = at.kind;
      client.socket = std::move(socket);
      client.key = service_.add(client.socket.get(), EPOLLIN,
                                [this, number](std::uint32_t events) { go_on(number, events); });
      wait_longer(number, client);
    }
  }

  void wait_longer(Number number, Client& client) {
    cancel(client.timer);
    if (!client.monitors.empty()) return;
    client.timer = service_.after(kClientPatience, [this, number] {
      clients_.at(number).timer = {};
      drop(number);
    });
  }

  void drop(Number number) noexcept {
    const auto at = clients_.find(number);
    if (at == clients_.end()) return;
    Client& client = at->second;
    cancel(client.timer);
    service_.forget(client.key, client.socket.get());
    const bool full = clients_.size() == kMaxClients;
    clients_.erase(at);
    if (!full || listening_.empty() || listening_.front().key == 0) return;
    service_.defer([weak = weak_from_this()] {
      const std::shared_ptr<Server> self = weak.lock();
      if (self == nullptr) return;
      for (Listening& each : self->listening_) {
        if (each.key != 0) self->accept(each);
      }
    });
  }

  void go_on(Number number, std::uint32_t events) {
    if ((events & (EPOLLERR | EPOLLHUP)) != 0) {
      drop(number);
      return;
    }
    Client& client = clients_.at(number);
    std::array<char, 1024> bytes{};
    const ssize_t got = recv(client.socket.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    const bool later = got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
    if (got > 0) {
      client.input.append(bytes.data(), static_cast<std::size_t>(got));
      wait_longer(number, client);
    } else if (!later && client.wants == Wants::kNothing && client.sent == client.output.size()) {
      drop(number);
      return;
    } else if (!later) {
      // It reads on: it is told what it has asked for, and not looked at until then.
      service_.change(client.key, client.socket.get(), 0);
      client.ends = true;
    }
    if (client.input.size() > kMaxInput) {
      drop(number);
      return;
    }
    understand(client);
    send_output(number);
  }

  void send_output(Number number) {
    const auto at = clients_.find(number);
    if (at == clients_.end()) return;
    Client& client = at->second;
    while (client.sent < client.output.size()) {
      const ssize_t sent = send(client.socket.get(), client.output.data() + client.sent,
                                client.output.size() - client.sent, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent < 0 && errno == EINTR) continue;
      if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
        service_.change(client.key, client.socket.get(), EPOLLOUT);
        return;
      }
      if (sent < 0) {
        drop(number);
        return;
      }
      client.sent += static_cast<std::size_t>(sent);
    }
    client.output.clear();
    client.sent = 0;
    if (client.wants != Wants::kNothing) return;
    if (client.ends) {
      drop(number);
    } else {
      service_.change(client.key, client.socket.get(), EPOLLIN);
    }
  }

  // ---- protocols ----

  void understand(Client& client) {
    while (client.wants == Wants::kNothing && !client.ends) {
      const std::size_t end = client.input.find('\n');
      if (end == std::string::npos) return;
      const std::string line = client.input.substr(0, end);
      client.input.erase(0, end + 1);
      if (client.kind == Kind::kRas) {
        answer_ras(client, line);
      } else {
        answer_http(client, line);
      }
    }
  }

  void answer_ras(Client& client, const std::string& line) {
    const std::vector<std::string> words = upper_words(line);
    const auto is = [&](std::size_t at, std::string_view word) {
      return words.size() > at && words[at] == word;
    };
    if (words.size() == 3 && is(0, "CLIENT") && is(1, "PROTOCOL") && is_number(words[2])) {
      client.output += fmt::format("SERVER PROTOCOL {}\n", kRasProtocol);
    } else if (words.size() == 2 && is(0, "TIMEOUT") && is_number(words[1])) {
      client.output += "OK\n";
    } else if (words.size() == 3 && is(0, "SET") && is(1, "FORMAT") &&
               (is(2, "TEXT") || is(2, "JSON"))) {
      client.json = is(2, "JSON");
      client.output += "OK\n";
    } else if ((words.size() == 1 && is(0, "STATUS")) ||
               (words.size() == 2 && is(0, "VERBOSE") && is(1, "STATUS"))) {
      const Wants text = words.size() == 2 ? Wants::kVerboseText : Wants::kText;
      ask_for(client, client.json ? Wants::kJson : text);
    } else if (is(0, "MONITOR")) {
      monitor(client, words);
    } else {
      const std::size_t end = std::min<std::size_t>(line.find_last_not_of("\r\n ") + 1, 64);
      client.output += "ERROR: Unknown command: " + line.substr(0, end) + "\n";
    }
  }

  // The groups of events are one word, separated by commas.
  void monitor(Client& client, const std::vector<std::string>& words) {
    const std::string groups =
        words.size() == 1 ? "LIFECYCLE"
                          : fmt::format("{}", fmt::join(words.begin() + 1, words.end(), " "));
    std::set<JobEvent::Group> wanted;
    for (std::size_t at = 0; at <= groups.size();) {
      const std::size_t end = std::min(groups.find(',', at), groups.size());
      const std::string group = groups.substr(at, end - at);
      at = end + 1;
      const bool all = group == "ALL";
      if (all || group == "LIFECYCLE") wanted.insert(JobEvent::Group::kLifecycle);
      if (all || group == "TRACE") wanted.insert(JobEvent::Group::kTrace);
      if (!all && group != "LIFECYCLE" && group != "TRACE") {
        client.output += fmt::format("ERROR: Invalid event group '{}'\n", group.substr(0, 64));
        return;
      }
    }
    client.monitors = std::move(wanted);
    client.output += "OK\n";
    cancel(client.timer);
    if (!job_) job_.emplace();
    if (watch_.second == 0) watch();
  }

  void answer_http(Client& client, const std::string& line) {
    const bool last = line.empty() || line == "\r";
    if (!client.has_head) {
      client.has_head = true;
      const std::string_view words(line);
      const std::string_view target = words.substr(0, words.rfind(" HTTP/"));
      if (target == "GET /metrics" || target.starts_with("GET /metrics?")) {
        client.json = false;
      } else {
        client.json = true;  // it gets no metrics
      }
      return;
    }
    if (!last) return;
    if (client.json) {
      client.output += "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
      client.ends = true;
      return;
    }
    ask_for(client, Wants::kMetrics);
  }

  // ---- asking the ranks ----

  void ask_for(Client& client, Wants wants) {
    client.wants = wants;
    ask_ranks();
  }

  void ask_ranks() {
    // Who comes while ranks are asked gets what these answer.
    if (look_.second != 0) return;
    began_ = Clock::now();
    before_.clear();
    again_ = false;
    ask();
  }

  void ask() {
    {
      const Lock lock(shared_->mutex);
      for (const MonitoredComm* comm : shared_->comms) {
        comm->summaries.ask(comm->failure.left());
      }
    }
    asked_ = Clock::now();
    look_ = service_.after(kAnswerPeriod, [this] { look(); });
  }

  void look() {
    look_ = {};
    std::vector<CommunicatorSummary> found;
    bool all = true;
    {
      const Lock lock(shared_->mutex);
      for (const MonitoredComm* comm : shared_->comms) {
        RankSummaries::Answers answers = comm->summaries.answers();
        all &= answers.all;
        found.push_back({comm->identity, comm->size, std::move(answers.by_rank), {}});
      }
    }
    if (!all && Clock::now() - asked_ < kAnswerTime) {
      look_ = service_.after(kAnswerPeriod, [this] { look(); });
      return;
    }
    const auto differ = [](const CommunicatorSummary& each) {
      return std::ranges::any_of(each.by_rank, [&](const auto& entry) {
        return entry.second.call != each.by_rank.begin()->second.call;
      });
    };
    if (!again_ && std::ranges::any_of(found, differ)) {
      again_ = true;
      for (const CommunicatorSummary& each : found) {
        for (const auto& [rank, summary] : each.by_rank) {
          before_[each.identity][rank] = summary.call;
        }
      }
      look_ = service_.after(kAgainAfter, [this] { ask(); });
      return;
    }
    for (CommunicatorSummary& each : found) each.before = before_[each.identity];
    tell(found);
  }

  void tell(const std::vector<CommunicatorSummary>& found) {
    if (job_) tell_events(job_->learn(found));
    const double seconds = std::chrono::duration<double>(Clock::now() - began_).count();
    std::vector<Number> told;
    for (auto& [number, client] : clients_) {
      switch (client.wants) {
        case Wants::kNothing: continue;
        case Wants::kText: client.output += ras_text(found, seconds, false); break;
        case Wants::kVerboseText: client.output += ras_text(found, seconds, true); break;
        case Wants::kJson: client.output += ras_json(found, seconds); break;
        case Wants::kMetrics: {
          const std::string body = metrics_text(found);
          client.output += fmt::format(
              "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
              "Content-Length: {}\r\nConnection: close\r\n\r\n{}",
              body.size(), body);
          break;
        }
      }
      client.wants = Wants::kNothing;
      client.ends = true;
      told.push_back(number);
    }
    for (const Number number : told) send_output(number);
  }

  // ---- telling those who monitor ----

  void watch() {
    watch_ = {};
    const bool anybody = std::ranges::any_of(
        clients_, [](const auto& entry) { return !entry.second.monitors.empty(); });
    if (!anybody) {
      job_.reset();
      return;
    }
    bool unknown = false;
    std::vector<PeerStates> states;
    {
      const Lock lock(shared_->mutex);
      for (const MonitoredComm* comm : shared_->comms) {
        states.push_back(states_of(*comm));
        unknown |= !job_->knows(comm->identity);
      }
    }
    if (unknown) ask_ranks();
    watch_ = service_.after(kWatchPeriod, [this] { watch(); });
    for (const PeerStates& each : states) {
      // Who its ranks are is being asked.
      if (job_->knows(each.identity)) tell_events(job_->see(each));
    }
  }

  void tell_events(const std::vector<JobEvent>& events) {
    if (events.empty()) return;
    const std::time_t now = std::time(nullptr);
    std::vector<Number> told;
    for (auto& [number, client] : clients_) {
      if (client.monitors.empty()) continue;
      for (const JobEvent& event : events) {
        if (!client.monitors.contains(event.group)) continue;
        client.output += client.json ? event_json(event, now) : event_text(event, now);
      }
      told.push_back(number);
    }
    for (const Number number : told) {
      send_output(number);
      const auto at = clients_.find(number);
      if (at != clients_.end() && at->second.output.size() - at->second.sent > kMaxUnread) {
        drop(number);
      }
    }
  }

  bootstrap::Service& service_;
  std::shared_ptr<ServedComms<MonitoredComm>> shared_;
  std::vector<Listening> listening_;
  Number last_ = 0;
  std::map<Number, Client> clients_;
  bootstrap::Service::TimerKey look_;   // while ranks are asked
  bootstrap::Service::TimerKey watch_;  // while somebody monitors
  std::optional<JobWatch> job_;         // what they were told
  Clock::time_point began_;
  Clock::time_point asked_;
  bool again_ = false;
  std::map<std::uint64_t, std::map<int, std::uint64_t>> before_;
};

JobPorts::JobPorts(bootstrap::Context& context) : service_(context) {}

JobPorts::~JobPorts() = default;

void JobPorts::add(const MonitoredComm& comm) noexcept {
  const std::array<std::pair<Server::Kind, Setting>, 2> ports = {
      {{Server::Kind::kRas, Setting::kRasPort}, {Server::Kind::kMetrics, Setting::kMetricsPort}}};
  const bool wanted = std::ranges::any_of(
      ports, [&](const auto& port) { return comm.config.integer(port.second) != 0; });
  if (!wanted) return;
  const auto listen = [&](bootstrap::Service& service,
                          std::shared_ptr<ServedComms<MonitoredComm>> shared) {
    std::vector<Server::Listening> listening;
    for (const auto& [kind, setting] : ports) {
      const auto port = static_cast<int>(comm.config.integer(setting));
      if (port == 0) continue;
      try {
        listening.push_back({kind, listen_on(loopback(port), nullptr), 0});
      } catch (const Error& error) {
        // Most likely another rank of the host has it.
        log::info(log::kInit, "rank {} does not serve port {}: {}", comm.rank, port, error.what());
      }
    }
    return listening.empty()
               ? nullptr
               : std::make_shared<Server>(service, std::move(shared), std::move(listening));
  };
  try {
    service_.add(comm, listen);
  } catch (const std::exception& error) {
    log::warn("rank {}: the ports for monitoring: {}", comm.rank, error.what());
  }
}

void JobPorts::remove(const MonitoredComm& comm) noexcept {
  try {
    if (comm.failure.broken()) {
      service_.post([last = states_of(comm)](Server& server) { server.departed(last); });
    }
    service_.remove(comm);
  } catch (const std::exception& error) {
    log::warn("the end of the ports for monitoring: {}", error.what());
  }
}

}  // namespace ropewalk::monitor
