#include "link/mapped_windows.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <span>
#include <utility>

#include "core/log.h"

namespace ropewalk::link {
namespace {

constexpr std::chrono::seconds kPatience{20};
constexpr std::chrono::milliseconds kLookPeriod{20};
constexpr std::chrono::microseconds kMeetingTurn{100};
// Messages of the bootstrap: how an attempt to connect ended.
constexpr std::uint32_t kOutcomeTag = 0x4d570000;
// Behind a window's bytes: a word by which each end says its rank.
constexpr std::size_t kNameBytes = 64;
// In it: the other end cannot use the path.
constexpr std::uint64_t kRefused = ~std::uint64_t{0};
// Behind it: the other end leaves in good order.
constexpr std::size_t kGoodbyeOffset = 8;

}  // namespace

// The setting-up of one driver's paths: of two ranks the higher one connects to the lower one, and
// says who it is by the first word of its path.
class MappedWindows::Meeting {
 public:
  Meeting(MappedWindows& windows, bootstrap::Bootstrap& bootstrap, std::size_t driver)
      : windows_(windows),
        bootstrap_(bootstrap),
        number_(driver),
        driver_(*windows.drivers_[driver]),
        sizes_{windows.bytes_ + kNameBytes, windows.bytes_ + kNameBytes} {}

  void run(Deadline deadline) {
    open();
    std::vector<Offer> offers(static_cast<std::size_t>(windows_.size_));
    offers[static_cast<std::size_t>(windows_.rank_)] = own_;
    bootstrap_.all_gather(std::as_writable_bytes(std::span(offers)), sizeof(Offer), kNoDeadline);
    for (int r = 0; r < windows_.size_; ++r) {
      const Offer& offer = offers[static_cast<std::size_t>(r)];
      if (own_.usable == 0 || offer.usable == 0 || !wanted(r)) continue;
      if (r > windows_.rank_) {
        awaited_.push_back(r);
      } else {
        call(r, offer.handle);
      }
    }
    deadline = std::min(deadline, deadline_after(kPatience));
    while (!calls_.empty() || !awaited_.empty()) {
      advance_calls();
      accept();
      identify();
      hear_outcomes();
      if (std::chrono::steady_clock::now() > deadline) {
        for (Call& one : calls_) end_call(one, "no answer in time");
        break;
      }
      std::this_thread::sleep_for(kMeetingTurn);
    }
  }

 private:
  // Plain bytes.
  struct Offer {
    std::uint64_t usable = 0;
    transport::Handle handle{};
  };
  struct Call {
    int peer = 0;
    std::unique_ptr<transport::window::Path> path;
    bool named = false;
    bool over = false;
  };

  [[nodiscard]] bool wanted(int peer) const {
    const auto p = static_cast<std::size_t>(peer);
    return windows_.host_of_rank_[p] !=
               windows_.host_of_rank_[static_cast<std::size_t>(windows_.rank_)] &&
           windows_.ends_[p].path == nullptr;
  }
  void open() {
    try {
      if (driver_.num_devices() == 0) return;
      acceptor_ = driver_.open_acceptor(0, sizes_);
      own_.usable = 1;
      own_.handle = acceptor_->handle();
    } catch (const Error& error) {
      log::info(log::kNet, "rank {}: no windows over {}: {}", windows_.rank_, driver_.name(),
                error.what());
    }
  }
  void call(int peer, const transport::Handle& handle) {
    Call call;
    call.peer = peer;
    try {
      call.path = driver_.connect(0, handle, sizes_);
    } catch (const Error& error) {
      end_call(call, error.what());
      return;
    }
    calls_.push_back(std::move(call));
  }
  // `why_not` empty: it works.
  void end_call(Call& call, std::string_view why_not) {
    const std::array outcome = {std::byte{why_not.empty() ? std::uint8_t{1} : std::uint8_t{0}}};
    bootstrap_.send(call.peer, kOutcomeTag + static_cast<std::uint32_t>(number_), outcome);
    if (why_not.empty()) {
      take(call.peer, std::move(call.path));
    } else {
      log::info(log::kNet, "rank {}: no window to rank {} over {}: {}", windows_.rank_, call.peer,
                driver_.name(), why_not);
    }
    call.over = true;
  }
  void take(int peer, std::unique_ptr<transport::window::Path> path) {
    End& end = windows_.ends_[static_cast<std::size_t>(peer)];
    end.path = std::move(path);
    end.driver = number_;
  }
  void put_name(Path& path) const {
    const bool mapped = path.other_window() != nullptr;
    path.put_word(windows_.bytes_,
                  mapped ? static_cast<std::uint64_t>(windows_.rank_) + 1 : kRefused);
  }
  // put_name() at the end that was called.
  [[nodiscard]] bool answered(Path& path) const {
    try {
      put_name(path);
      return true;
    } catch (const Error& error) {
      log::info(log::kNet, "rank {}: a window over {}: {}", windows_.rank_, driver_.name(),
                error.what());
      return false;
    }
  }
  [[nodiscard]] std::uint64_t name_at(const Path& path) const {
    return path.read_word(windows_.bytes_);
  }

  void advance_calls() {
    for (Call& call : calls_) {
      try {
        if (!call.path->ready()) continue;
        if (!call.named) {
          put_name(*call.path);
          call.named = true;
        }
        const std::uint64_t answer = name_at(*call.path);
        if (answer == static_cast<std::uint64_t>(call.peer) + 1) {
          end_call(call,
                   call.path->other_window() == nullptr ? "it is not mapped in one piece" : "");
        } else if (answer != 0) {
          end_call(call, "the other end cannot use it");
        } else if (const std::optional<std::string> lost = call.path->peer_lost()) {
          end_call(call, *lost);
        }
      } catch (const Error& error) {
        end_call(call, error.what());
      }
    }
    std::erase_if(calls_, [](const Call& call) { return call.over; });
  }
  void accept() {
    if (acceptor_ == nullptr) return;
    while (std::unique_ptr<transport::window::Path> path = acceptor_->accept())
      strangers_.push_back(std::move(path));
  }
  void identify() {
    for (std::unique_ptr<transport::window::Path>& path : strangers_) {
      const std::uint64_t name = name_at(*path);
      if (name == 0) continue;
      const auto waiting = std::ranges::find(awaited_, static_cast<std::int64_t>(name) - 1);
      // One that cannot use the path names nobody, and its outcome follows; so does that of one
      // which is gone again.
      if (waiting != awaited_.end() && answered(*path)) {
        take(*waiting, std::move(path));
      } else {
        path->disconnect();
        path.reset();
      }
    }
    std::erase(strangers_, nullptr);
  }
  void hear_outcomes() {
    std::erase_if(awaited_, [&](int peer) {
      const auto heard =
          bootstrap_.try_recv(peer, kOutcomeTag + static_cast<std::uint32_t>(number_));
      if (!heard.has_value()) return false;
      if (heard->empty() || heard->front() == std::byte{}) {
        windows_.ends_[static_cast<std::size_t>(peer)].path = nullptr;
      }
      return true;
    });
  }

  MappedWindows& windows_;
  bootstrap::Bootstrap& bootstrap_;
  std::size_t number_;
  transport::window::Driver& driver_;
  transport::window::WindowSizes sizes_;
  std::unique_ptr<transport::window::Acceptor> acceptor_;
  Offer own_;
  std::vector<Call> calls_;
  std::vector<int> awaited_;
  std::vector<std::unique_ptr<transport::window::Path>> strangers_;
};

MappedWindows::MappedWindows(bootstrap::Bootstrap& bootstrap, Drivers drivers,
                             std::vector<int> host_of_rank, std::size_t bytes, Deadline deadline)
    : rank_(bootstrap.rank()),
      size_(bootstrap.size()),
      host_of_rank_(std::move(host_of_rank)),
      bytes_((bytes + kNameBytes - 1) / kNameBytes * kNameBytes),
      drivers_(std::move(drivers)),
      ends_(static_cast<std::size_t>(size_)) {
  RW_ASSERT(host_of_rank_.size() == static_cast<std::size_t>(size_));
  for (std::size_t d = 0; d < drivers_.size(); ++d) {
    Meeting(*this, bootstrap, d).run(deadline);
    agree(bootstrap);
    if (complete()) break;
  }
}

MappedWindows::~MappedWindows() {
  stop_watching();
  for (End& end : ends_) {
    if (end.path != nullptr) end.path->disconnect();
  }
}

void MappedWindows::agree(bootstrap::Bootstrap& bootstrap) {
  const auto n = static_cast<std::size_t>(size_);
  std::vector<std::uint8_t> all(n * n);
  std::uint8_t* const mine = all.data() + static_cast<std::size_t>(rank_) * n;
  for (std::size_t r = 0; r < n; ++r) mine[r] = ends_[r].path != nullptr ? 1 : 0;
  bootstrap.all_gather(std::as_writable_bytes(std::span(all)), n, kNoDeadline);
  pairs_.clear();
  for (std::size_t a = 0; a < n; ++a) {
    for (std::size_t b = a + 1; b < n; ++b) {
      if (all[a * n + b] != 0 && all[b * n + a] != 0) {
        pairs_.emplace_back(static_cast<int>(a), static_cast<int>(b));
      }
    }
  }
  for (int r = 0; r < size_; ++r) {
    End& end = ends_[static_cast<std::size_t>(r)];
    if (end.path == nullptr ||
        std::ranges::binary_search(pairs_, RankPair(std::minmax(r, rank_)))) {
      continue;
    }
    end.path->disconnect();
    end.path = nullptr;
  }
}

bool MappedWindows::complete() const noexcept {
  std::size_t wanted = 0;
  for (std::size_t a = 0; a < host_of_rank_.size(); ++a) {
    for (std::size_t b = a + 1; b < host_of_rank_.size(); ++b) {
      wanted += host_of_rank_[a] != host_of_rank_[b] ? 1U : 0U;
    }
  }
  return pairs_.size() == wanted;
}

std::string MappedWindows::name() const {
  std::string names;
  for (std::size_t d = 0; d < drivers_.size(); ++d) {
    const auto uses = [d](const End& end) { return end.path != nullptr && end.driver == d; };
    if (!std::ranges::any_of(ends_, uses)) continue;
    names += names.empty() ? "" : ", ";
    names += drivers_[d]->name();
  }
  return names;
}

void MappedWindows::keep(bootstrap::Bootstrap& bootstrap, const std::vector<bool>& fit) {
  RW_ASSERT(!watcher_.joinable());
  for (std::size_t r = 0; r < ends_.size(); ++r) {
    if (ends_[r].path == nullptr || fit[r]) continue;
    ends_[r].path->disconnect();
    ends_[r].path = nullptr;
  }
  agree(bootstrap);
}

void MappedWindows::watch(std::function<void()> on_loss) {
  RW_ASSERT(!watcher_.joinable());
  stop_ = false;
  watcher_ = std::thread([this, hook = std::move(on_loss)] { run(hook); });
}

void MappedWindows::stop_watching() noexcept {
  if (!watcher_.joinable()) return;
  stop_ = true;
  watcher_.join();
}

void MappedWindows::say_goodbye() noexcept {
  stop_watching();
  for (End& end : ends_) {
    if (end.path == nullptr) continue;
    try {
      end.path->put_word(bytes_ + kGoodbyeOffset, 1);
    } catch (const Error& error) {  // it has left already
      log::info(log::kNet, "rank {}: {}", rank_, error.what());
    }
  }
}

std::optional<Error> MappedWindows::lost() const {
  const Lock lock(mutex_);
  return lost_;
}

std::optional<Error> MappedWindows::look() {
  for (std::size_t r = 0; r < ends_.size(); ++r) {
    Path* const path = ends_[r].path.get();
    if (path == nullptr || path->read_word(bytes_ + kGoodbyeOffset) != 0) continue;
    try {
      std::optional<std::string> why = path->peer_lost();
      if (!why) why = path->stores_lost();
      // Its last word may have come meanwhile.
      if (why && path->read_word(bytes_ + kGoodbyeOffset) == 0) {
        return Error(Errc::kPeerLost, "rank {} lost rank {} over {}: {}", rank_, r,
                     drivers_[ends_[r].driver]->name(), *why);
      }
    } catch (const Error& error) {
      return Error(Errc::kPeerLost, "rank {} lost rank {}: {}", rank_, r, error.what());
    }
  }
  return std::nullopt;
}

void MappedWindows::run(const std::function<void()>& on_loss) {
  while (!stop_) {
    if (std::optional<Error> lost = look()) {
      log::info(log::kNet, "{}", lost->what());
      {
        const Lock lock(mutex_);
        lost_ = std::move(lost);
      }
      on_loss();
      return;
    }
    std::this_thread::sleep_for(kLookPeriod);
  }
}

}  // namespace ropewalk::link
