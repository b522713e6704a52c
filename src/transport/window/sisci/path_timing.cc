// Stores of the CPU and transfers by DMA against the clock.
#include <algorithm>
#include <limits>
#include <vector>

#include "core/log.h"
#include "transport/window/sisci/path.h"

namespace ropewalk::transport::window::sisci {
namespace {

using Clock = std::chrono::steady_clock;

// The least counts: what else the system does only adds to it.
constexpr int kRounds = 3;
// A link that is so slow is not worth the wait of who connects.
constexpr auto kLongestTiming = std::chrono::milliseconds(2);
// In front of a window that words and entries have.
constexpr std::size_t kWindowBytes = 64 << 10;
constexpr double kNever = std::numeric_limits<double>::infinity();

double microseconds_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

}  // namespace

bool SisciPath::times_copies() const { return options_.pio_bytes == 0 && memory_.crossover == 0; }

void SisciPath::time_copies() {
  if (options_.pio_bytes == 0 && memory_.crossover != 0) transfer_from_ = memory_.crossover;
  if (!times_copies() || !use_dma_) return;
  const unsigned source = (tried_ & kFromRegistered) != 0 ? kFromRegistered : kFromPlain;
  const std::size_t most = kTimedSizes.back();
  if ((tried_ & source) == 0 || !trial_region_ || trial_->timed().size() < most ||
      trial_region_->bytes() < Trial::kTimedOffset + most ||
      window_bytes_ < kWindowBytes + kRounds * 2 * most) {
    return;
  }
  // The end of the other end's window is for data, and empty before the first message. Each time is
  // of another part of it: what this end stored before would still be in its caches.
  // The first store to a page has its price, too.
  std::size_t window_offset = window_bytes_;
  for (std::size_t at = kWindowBytes; at < window_bytes_; at += kTrialPage) {
    put(at, trial_->timed().data(), 1);
  }
  std::vector<TimedCopies> timed;
  const Clock::time_point begin = Clock::now();
  for (const std::size_t bytes : kTimedSizes) {
    TimedCopies one{bytes, kNever, kNever};
    for (int round = 0; round < kRounds; ++round) {
      window_offset -= bytes;
      one.stores_us =
          std::min(one.stores_us, time_stores(window_offset, trial_->timed().first(bytes)));
      one.transfer_us = std::min(one.transfer_us, time_transfer(bytes, source));
    }
    if (one.transfer_us == kNever) return;  // the trials or the first messages say what is wrong
    timed.push_back(one);
    if (Clock::now() - begin > kLongestTiming) break;
  }
  transfer_from_ = crossover(timed);
  memory_.crossover = transfer_from_;
  log::info(log::kNet, "{}: DMA from {} bytes on: {} bytes take {:.1f} us by stores, {:.1f} by DMA",
            to_peer(), transfer_from_, timed.back().bytes, timed.back().stores_us,
            timed.back().transfer_us);
}

// The other end's copy out of the window is taken to be as long as the stores into it.
double SisciPath::time_stores(std::size_t window_offset, std::span<const std::byte> source) {
  const Clock::time_point begin = Clock::now();
  put(window_offset, source.data(), source.size());
  order_puts_before_reads();
  return 2 * microseconds_since(begin);
}

double SisciPath::time_transfer(std::size_t bytes, unsigned source) {
  Copy& copy = copies_.front();
  if (!copy.queue) return kNever;
  const Clock::time_point begin = Clock::now();
  if (start_from_trial(source, trial_->timed().first(bytes)) != Status::kOk) return kNever;
  Queue::Progress progress = copy.queue->progress();
  while (progress == Queue::Progress::kRunning && Clock::now() - begin < kLongestTiming) {
    progress = copy.queue->progress();
  }
  if (progress == Queue::Progress::kDone) return microseconds_since(begin);
  // Transfers in progress end with their queue.
  Status made = Status::kUnset;
  copy.queue = Queue::create(context_, descriptor_, options_.adapter, made);
  if (!copy.queue) use_dma_ = false;
  return kNever;
}

}  // namespace ropewalk::transport::window::sisci
