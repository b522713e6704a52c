#include "capi/mp/kernel_requests.h"

#include <atomic>
#include <new>

#include "capi/mp/failure.h"

namespace ropewalk::mp {
namespace {

// More are allocated where these do not suffice, for which CUDA may wait until kernels have ended.
constexpr std::size_t kAtOnce = 4096;

template <typename T>
T read(T& word) {
  return std::atomic_ref(word).load(std::memory_order_acquire);
}

template <typename T>
void write(T& word, T value) {
  std::atomic_ref(word).store(value, std::memory_order_release);
}

// Tells the kernel. @return whether it will tell in turn that it has seen it
bool tell(const mp_request& request) {
  const bool failed = !request.error.empty();
  write(request.kernel_words->ended, request.kernel_number + (failed ? 1U : 0U));
  return !failed;
}

}  // namespace

void KernelRequests::add_words() {
  auto* const made = static_cast<KernelWords*>(memory_.allocate(kAtOnce * sizeof(KernelWords)));
  for (std::size_t k = 0; k < kAtOnce; ++k) free_.push_back(new (made + k) KernelWords);
}

const mp_kernel_control_t* KernelRequests::control() {
  if (control_ == nullptr) {
    auto* const made = static_cast<mp_kernel_control_t*>(memory_.allocate(sizeof *control_));
    made->timeout_ns = timeout_ns_;
    control_ = made;
  }
  return control_;
}

KernelWords& KernelRequests::words_of(mp_request& request) {
  if (request.kernel_words == nullptr) {
    if (free_.empty()) add_words();
    request.kernel_words = free_.front();
    free_.pop_front();
    // Even, since the next one says that it failed. 0 is what unused words show.
    last_number_ += last_number_ == UINT32_MAX - 1 ? 4 : 2;
    request.kernel_number = last_number_;
  }
  return *request.kernel_words;
}

mp_kernel_send_t KernelRequests::start_by_kernel(mp_request& request) {
  KernelWords& words = words_of(request);
  to_start_[request.peer].push_back(&request);
  request.state = State::kQueued;
  return {&words.counted, &words.start, request.kernel_number, request.kernel_number};
}

void KernelRequests::provide(mp_request& request) {
  (void)control();
  (void)words_of(request);
}

mp_kernel_wait_t KernelRequests::wait_by_kernel(mp_request& request) {
  const mp_kernel_control_t* const its = control();
  KernelWords& words = words_of(request);
  watched_.push_back(&request);
  request.told_to_wait = true;
  ++request.waiting_streams;
  return {&words.ended, &words.consumed, request.kernel_number, its};
}

bool KernelRequests::poll(const std::function<void(mp_request&)>& post) {
  bool moved = false;
  for (auto of_peer = to_start_.begin(); of_peer != to_start_.end();) {
    std::deque<mp_request*>& requests = of_peer->second;
    while (!requests.empty()) {
      mp_request& first = *requests.front();
      if (read(first.kernel_words->start) != first.kernel_number) break;
      requests.pop_front();
      moved = true;
      post(first);
    }
    of_peer = requests.empty() ? to_start_.erase(of_peer) : std::next(of_peer);
  }
  std::erase_if(watched_, [&](mp_request* request) {
    if (!request->ended()) return false;
    if (!request->kernel_told) {
      request->kernel_told = true;
      moved = true;
      if (tell(*request)) return false;
    } else if (read(request->kernel_words->consumed) != request->kernel_number) {
      return false;
    }
    --request->waiting_streams;
    moved = true;
    return true;
  });
  return moved;
}

void KernelRequests::fail(const std::string& text) {
  for (const auto& [peer, requests] : to_start_) {
    for (mp_request* const request : requests) request->end(text);
  }
  to_start_.clear();
  for (mp_request* const request : watched_) {
    // Transfers end later, and do fail.
    const bool complete = request->ended() && request->error.empty();
    write(request->kernel_words->ended, request->kernel_number + (complete ? 0U : 1U));
    --request->waiting_streams;
  }
  watched_.clear();
  if (control_ != nullptr) write(control_->aborted, std::uint32_t{1});
}

void KernelRequests::forget(mp_request& request) {
  if (request.kernel_words != nullptr) free_.push_back(request.kernel_words);
  request.kernel_words = nullptr;
}

}  // namespace ropewalk::mp
