#include "handshake/stream_operations.h"

#include <algorithm>

namespace ropewalk::handshake {

namespace gpus = transport::window;

void StreamOperations::add(int operation, const std::uint64_t& word, std::uint64_t value,
                           unsigned flags) {
  gpus::CuStreamOperation& added = pending_.emplace_back();
  added.operation = operation;
  added.address = words_.on_device(word);
  added.value = value;
  added.flags = flags;
}

void StreamOperations::write(const std::uint64_t& word, std::uint64_t value) {
  add(gpus::kCuStreamWrite64, word, value, 0);
}

void StreamOperations::wait_for(const std::uint64_t& word, std::uint64_t value) {
  add(gpus::kCuStreamWait64, word, value, gpus::kCuStreamWaitEqual);
}

void StreamOperations::wait_for_least(const std::uint64_t& word, std::uint64_t value) {
  add(gpus::kCuStreamWait64, word, value, 0);
}

void StreamOperations::submit(gpus::CuStream stream, const char* tried) {
  gpus::CuResult result = gpus::kCuSuccess;
  for (std::size_t done = 0; done < pending_.size() && result == gpus::kCuSuccess;) {
    const std::size_t count = std::min(pending_.size() - done, gpus::kCuMostStreamOperations);
    result = cuda_.stream_batch(stream, static_cast<unsigned>(count), pending_.data() + done, 0);
    done += count;
  }
  pending_.clear();
  cuda_.check(result, tried);
}

}  // namespace ropewalk::handshake
