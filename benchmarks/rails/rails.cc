// What rails carry together, and what a cut costs: two hosts as network namespaces, joined through
// a third one by virtual interfaces that token buckets shape (tc-tbf). Needs root.
//
// Usage: rails_benchmark [rates|cut|gibibyte|cuts]... [--rounds N] [--cuts N] [--json FILE]
//
//   rates  one direction, 1 MiB messages, 8 under way, 2 s after the first 0.5 s; by turns
//   cut    one of two rails of 100 MB/s goes after 2 s of a stream of 256 KiB messages, its
//          interface down or the switch behind it silent, and comes back after 2 s more
//   gibibyte   1 GiB in messages of 256 KiB; one of two rails of 100 MB/s goes after 2 s and stays
//          away; every byte is compared
//   cuts   that many cuts at random moments, of either rail at either host, down or silent, 0 to
//          400 ms long, while messages of random sizes go both ways, of which every byte is
//          compared
#include "transport/rails/rails.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "core/settings.h"
#include "transport/rails/testing/exchange.h"
#include "transport/rails/testing/two_hosts.h"
#include "transport/registry.h"

namespace {

using namespace ropewalk;             // NOLINT
using namespace ropewalk::transport;  // NOLINT
using namespace std::chrono_literals;
using rails::testing::Clock;
using rails::testing::Joined;
using rails::testing::receive_stream;
using rails::testing::Received;
using rails::testing::send_stream;
using rails::testing::StreamShape;
using rails::testing::TwoHosts;

// What Ethernet, IP and TCP add to the payload of a packet of 1,500 bytes: the bucket counts it.
constexpr double kPayload = 1448.0 / 1514.0;

double seconds(Clock::duration time) { return std::chrono::duration<double>(time).count(); }

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

std::thread on_host(const TwoHosts& hosts, int host, std::function<void()> body) {
  return std::thread([&hosts, host, body = std::move(body)] {
    try {
      hosts.enter(host);
      body();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "host %d: %s\n", host, error.what());
      std::exit(1);
    }
  });
}

// Two transports, one on each host, and a connection each way.
struct Pair {
  Pair(const TwoHosts& hosts, const std::string& net, int ways) {
    Config config;
    config.set("PEER_LOSS_TIME", "20s", "benchmark");
    for (int host = 0; host < 2; ++host) {
      on_host(hosts, host, [&] {
        ends[static_cast<std::size_t>(host)] = make_transport(net, config);
      }).join();
    }
    for (int way = 0; way < ways; ++way) {
      Joined& joined = connections.emplace_back();
      std::unique_ptr<Listener> listener;
      on_host(hosts, 1 - way, [&] {
        listener = ends[static_cast<std::size_t>(1 - way)]->listen(0);
      }).join();
      on_host(hosts, way, [&] {
        const auto connector = ends[static_cast<std::size_t>(way)]->connect(0, listener->handle());
        rails::testing::wait_for({}, "connecting", [&] {
          if (joined.sender == nullptr) joined.sender = connector->poll();
          if (joined.receiver == nullptr) joined.receiver = listener->accept();
          return joined.sender != nullptr && joined.receiver != nullptr && joined.sender->ready();
        });
      }).join();
    }
  }
  std::array<std::unique_ptr<Transport>, 2> ends;
  std::deque<Joined> connections;
};

struct Arrival {
  Clock::time_point at;
  std::size_t bytes;
};

// A stream of messages of one size, of which nobody looks at the bytes.
std::vector<Arrival> pump(const TwoHosts& hosts, Pair& pair, std::size_t bytes,
                          std::size_t under_way, Clock::duration time) {
  Joined& joined = pair.connections.front();
  const Clock::time_point end = Clock::now() + time;
  std::vector<Arrival> arrivals;
  // As many are sent as the receiver had posted when the time was over.
  std::atomic<std::uint64_t> total = ~std::uint64_t{0};
  std::thread sending = on_host(hosts, 0, [&] {
    const std::vector<std::byte> memory(bytes, std::byte{3});
    std::deque<std::unique_ptr<Request>> requests;
    for (std::uint64_t sent = 0; sent < total || !requests.empty();) {
      if (requests.size() < under_way && sent < total) {
        if (auto request = joined.sender->send(memory.data(), bytes, 1, nullptr)) {
          requests.push_back(std::move(request));
          ++sent;
        }
      }
      while (!requests.empty() && requests.front()->test()) requests.pop_front();
      std::this_thread::sleep_for(20us);
    }
  });
  std::thread receiving = on_host(hosts, 1, [&] {
    // So that the sender is never ahead of what is posted, when the time is over.
    const std::size_t most = 3 * under_way;
    std::vector<std::vector<std::byte>> memory(most, std::vector<std::byte>(bytes));
    std::deque<std::unique_ptr<Request>> requests;
    std::uint64_t posted = 0;
    while (arrivals.size() < total) {
      const bool over = Clock::now() >= end;
      if (requests.size() < most && (!over || posted < arrivals.size() + 2 * under_way) &&
          posted < total) {
        const ReceiveBuffer buffer{memory[posted % most].data(), bytes, 1, nullptr};
        if (auto request = joined.receiver->receive({&buffer, 1})) {
          requests.push_back(std::move(request));
          ++posted;
        }
      }
      if (over && posted >= arrivals.size() + 2 * under_way && posted < total) total = posted;
      if (!requests.empty() && requests.front()->test()) {
        requests.pop_front();
        arrivals.push_back({Clock::now(), bytes});
      } else {
        std::this_thread::sleep_for(20us);
      }
    }
  });
  sending.join();
  receiving.join();
  return arrivals;
}

double rate(const std::vector<Arrival>& arrivals, Clock::time_point from, Clock::time_point to) {
  double bytes = 0;
  for (const Arrival& each : arrivals) {
    if (each.at > from && each.at <= to) bytes += static_cast<double>(each.bytes);
  }
  return bytes / seconds(to - from);
}

// The begin of the time up to `until` in which each 100 ms bring at least that rate.
Clock::time_point flows_since(const std::vector<Arrival>& arrivals, Clock::time_point from,
                              Clock::time_point until, double least) {
  Clock::time_point since = from;
  for (Clock::time_point at = from; at + 100ms < until; at += 5ms) {
    if (rate(arrivals, at, at + 100ms) < least) since = at + 5ms;
  }
  return since;
}

std::string json = "{";
void report(const std::string& key, double value) {
  json += fmt::format("{}\"{}\": {:.6g}", json.size() > 1 ? ", " : "", key, value);
}

void rates(int rounds) {
  struct Case {
    std::string net;
    std::vector<int> pairs;
  };
  const std::vector<Case> cases = {{"tcp", {100}},        {"rails", {100}},
                                   {"rails", {100, 100}}, {"rails", {100, 100, 100, 100}},
                                   {"rails", {100, 25}},  {"rails", {100, 10}}};
  std::vector<std::vector<double>> found(cases.size());
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t c = 0; c < cases.size(); ++c) {
      const TwoHosts hosts(cases[c].pairs);
      if (!hosts.ready() || !hosts.shaped()) {
        std::fprintf(stderr, "no namespaces, or no tbf\n");
        std::exit(1);
      }
      Pair pair(hosts, cases[c].net, 1);
      const Clock::time_point begin = Clock::now();
      const std::vector<Arrival> arrivals = pump(hosts, pair, 1 << 20, 8, 2500ms);
      found[c].push_back(rate(arrivals, begin + 500ms, begin + 2500ms));
    }
  }
  std::printf("%-8s%-22s%10s%8s%8s\n", "NET", "interfaces, MB/s", "MB/s", "/ one", "/ sum");
  const double one = median(found[1]);
  for (std::size_t c = 0; c < cases.size(); ++c) {
    std::string names;
    double sum = 0;
    for (const int each : cases[c].pairs) {
      names += fmt::format("{} ", each);
      sum += each * 1e6 * kPayload;
    }
    const double value = median(found[c]);
    std::printf("%-8s%-22s%10.1f%8.2f%8.3f\n", cases[c].net.c_str(), names.c_str(), value / 1e6,
                value / one, value / sum);
    names.pop_back();
    report(fmt::format("{} {}", cases[c].net, names), value);
  }
}

void cut(int rounds) {
  std::map<bool, std::array<std::vector<double>, 4>> found;
  for (int round = 0; round < rounds; ++round) {
    for (const bool silent : {false, true}) {
      const TwoHosts hosts({100, 100});
      Pair pair(hosts, "rails", 1);
      std::vector<Arrival> arrivals;
      const Clock::time_point begin = Clock::now();
      std::thread stream([&] { arrivals = pump(hosts, pair, 256 << 10, 10, 6s); });
      std::this_thread::sleep_until(begin + 2s);
      const Clock::time_point cut_at = Clock::now();
      silent ? hosts.silence(1, 0) : hosts.down(1, 0);
      std::this_thread::sleep_until(begin + 4s);
      const Clock::time_point back_at = Clock::now();
      silent ? hosts.join(1, 0) : hosts.up(1, 0);
      stream.join();
      // Flowing: from here on each 100 ms until the rail's return bring 0.9 of what one carries.
      const double rest = 100e6 * kPayload;
      const auto flowing = flows_since(arrivals, cut_at, back_at, 0.9 * rest);
      const auto whole = flows_since(arrivals, back_at, begin + 6s, 1.6 * rest);
      auto& to = found[silent];
      to[0].push_back(rate(arrivals, begin + 500ms, cut_at) / (2 * rest));
      to[1].push_back(seconds(flowing - cut_at));
      to[2].push_back(rate(arrivals, flowing, back_at) / rest);
      to[3].push_back(seconds(whole - back_at));
    }
  }
  std::printf("\n%-34s%10s%10s%10s%10s\n", "one of two rails of 100 MB/s", "before", "flowing s",
              "rest", "whole s");
  for (auto& [silent, columns] : found) {
    const char* const how = silent ? "the switch drops all" : "its interface goes down";
    std::printf("%-34s%10.3f%10.3f%10.3f%10.3f\n", how, median(columns[0]), median(columns[1]),
                median(columns[2]), median(columns[3]));
    std::printf("%-34s%10s%10.3f\n", "  the longest", "", *std::ranges::max_element(columns[1]));
    report(fmt::format("{}: flowing, s", how), median(columns[1]));
    report(fmt::format("{}: flowing, longest, s", how), *std::ranges::max_element(columns[1]));
    report(fmt::format("{}: of the rest", how), median(columns[2]));
    report(fmt::format("{}: whole again, s", how), median(columns[3]));
  }
}

void gibibyte(int rounds) {
  constexpr std::uint64_t kMessages = 4096;
  std::map<bool, std::array<std::vector<double>, 2>> found;
  std::uint64_t wrong = 0;
  std::uint64_t lost = 0;
  const double rest = 100e6 * kPayload;
  for (int round = 0; round < rounds; ++round) {
    for (const bool silent : {false, true}) {
      const TwoHosts hosts({100, 100});
      Pair pair(hosts, "rails", 1);
      StreamShape shape;
      shape.seed = static_cast<std::uint64_t>(round) + 1;
      shape.least_bytes = shape.most_bytes = 256 << 10;
      shape.under_way = 10;
      std::vector<Arrival> arrivals;
      std::uint64_t asked = 0;
      std::uint64_t sent = 0;
      Received received;
      const Clock::time_point begin = Clock::now();
      std::thread sending = on_host(hosts, 0, [&] {
        sent = send_stream(*pair.connections.front().sender, shape,
                           [&] { return ++asked > kMessages - shape.under_way; });
      });
      std::thread receiving = on_host(hosts, 1, [&] {
        received =
            receive_stream(*pair.connections.front().receiver, shape, [&](std::size_t bytes) {
              arrivals.push_back({Clock::now(), bytes});
            });
      });
      std::this_thread::sleep_until(begin + 2s);
      const Clock::time_point cut_at = Clock::now();
      silent ? hosts.silence(1, 0) : hosts.down(1, 0);
      sending.join();
      receiving.join();
      const Clock::time_point over = arrivals.back().at;
      const auto flowing = flows_since(arrivals, cut_at, over, 0.9 * rest);
      found[silent][0].push_back(seconds(flowing - cut_at));
      found[silent][1].push_back(rate(arrivals, flowing, over) / rest);
      wrong += received.wrong + received.late;
      lost += sent - received.messages + (kMessages - sent);
    }
  }
  std::printf("\n%-44s%10s%10s\n", "1 GiB, one of two rails goes for good", "flowing s", "rest");
  for (auto& [silent, columns] : found) {
    const char* const how = silent ? "the switch drops all" : "its interface goes down";
    std::printf("%-44s%10.3f%10.3f\n", how, median(columns[0]), median(columns[1]));
    report(fmt::format("1 GiB, {}: flowing, s", how), median(columns[0]));
    report(fmt::format("1 GiB, {}: of the rest", how), median(columns[1]));
  }
  std::printf("%d transfers: %lu messages lost, %lu wrong\n", 2 * rounds, lost, wrong);
}

void cuts(int count) {
  const TwoHosts hosts({60, 60});
  Pair pair(hosts, "rails", 2);
  std::atomic<bool> stop = false;
  std::array<std::uint64_t, 2> sent{};
  std::array<Received, 2> received{};
  std::vector<std::thread> threads;
  for (int way = 0; way < 2; ++way) {
    const auto w = static_cast<std::size_t>(way);
    StreamShape shape;
    shape.seed = w + 1;
    threads.push_back(on_host(hosts, way, [&, w, shape] {
      sent[w] = send_stream(*pair.connections[w].sender, shape, [&] { return stop.load(); });
    }));
    threads.push_back(on_host(hosts, 1 - way, [&, w, shape] {
      received[w] = receive_stream(*pair.connections[w].receiver, shape);
    }));
  }
  std::mt19937 random(11);
  for (int i = 0; i < count; ++i) {
    const int rail = static_cast<int>(random() % 2);
    const int host = static_cast<int>(random() % 2);
    const bool silent = random() % 2 == 0;
    silent ? hosts.silence(rail, host) : hosts.down(rail, host);
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 400));
    silent ? hosts.join(rail, host) : hosts.up(rail, host);
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 200));
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  std::uint64_t losses = 0;
  std::uint64_t lost = 0;
  for (std::size_t w = 0; w < 2; ++w) {
    lost += sent[w] - received[w].messages;
    for (const rails::RailReport& each : rails::report(*pair.connections[w].sender)) {
      losses += each.losses;
    }
  }
  std::printf(
      "\n%d cuts: %lu and %lu messages, %.0f MB; %lu lost, %lu wrong, %lu written late, "
      "0 hangs; rails were lost %lu times\n",
      count, sent[0], sent[1], static_cast<double>(received[0].bytes + received[1].bytes) / 1e6,
      lost, received[0].wrong + received[1].wrong, received[0].late + received[1].late, losses);
  report("cuts", count);
  report("cuts: lost", static_cast<double>(lost));
  report("cuts: wrong", static_cast<double>(received[0].wrong + received[1].wrong));
  report("cuts: late", static_cast<double>(received[0].late + received[1].late));
}

}  // namespace

int main(int argc, char** argv) {
  int rounds = 3;
  int count = 500;
  std::string file;
  std::vector<std::string> what;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const char* const value = i + 1 < argc ? argv[i + 1] : "";
    if (argument == "--rounds") {
      rounds = std::max(1, std::atoi(value)), ++i;
    } else if (argument == "--cuts") {
      count = std::max(1, std::atoi(value)), ++i;
    } else if (argument == "--json") {
      file = value, ++i;
    } else {
      what.push_back(argument);
    }
  }
  if (what.empty()) what = {"rates", "cut", "gibibyte", "cuts"};
  for (const std::string& each : what) {
    if (each == "rates") rates(rounds);
    if (each == "cut") cut(rounds);
    if (each == "gibibyte") gibibyte(rounds);
    if (each == "cuts") cuts(count);
    std::fflush(stdout);
  }
  json += "}\n";
  if (!file.empty()) {
    if (FILE* const out = std::fopen(file.c_str(), "w")) {
      std::fputs(json.c_str(), out);
      std::fclose(out);
    }
  }
}
