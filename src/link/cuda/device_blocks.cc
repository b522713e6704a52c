#include "link/cuda/device_blocks.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "executor/cuda/cuda_error.h"

namespace ropewalk::link {
namespace {

constexpr std::size_t kLeastBytes = 512;

}  // namespace

DeviceBlocks::~DeviceBlocks() {
  // A graph that outlives the communicator releases an empty block, in a thread of CUDA that
  // may not free memory.
  for (const std::shared_ptr<DeviceBlock>& block : blocks_) block->release();
}

std::shared_ptr<DeviceBlock> DeviceBlocks::unused(std::size_t bytes) {
  const auto fits = [&](const std::shared_ptr<DeviceBlock>& block) {
    return block.use_count() == 1 && block->capacity() == bytes;
  };
  const auto found = std::ranges::find_if(blocks_, fits);
  return found != blocks_.end() && order_.has_run() ? *found : nullptr;
}

std::shared_ptr<DeviceBlock> DeviceBlocks::copy(std::span<const std::byte> bytes) {
  const std::size_t capacity = std::bit_ceil(std::max(bytes.size(), kLeastBytes));
  const executor::RelaxedCapture relaxed;
  std::shared_ptr<DeviceBlock> block = unused(capacity);
  if (block == nullptr) {
    block = std::make_shared<DeviceBlock>(capacity);
    blocks_.push_back(block);
  }
  executor::check_cuda(cudaMemcpyAsync(block->data(), bytes.data(), bytes.size(),
                                       cudaMemcpyHostToDevice, stream_.get()),
                       "cudaMemcpyAsync (to the device)");
  executor::check_cuda(cudaStreamSynchronize(stream_.get()),
                       "cudaStreamSynchronize (copying to the device)");
  return block;
}

std::size_t DeviceBlocks::bytes() const noexcept {
  std::size_t total = 0;
  for (const std::shared_ptr<DeviceBlock>& block : blocks_) total += block->capacity();
  return total;
}

void hold_in_graph(cudaGraph_t graph, std::vector<std::shared_ptr<DeviceBlock>> blocks) {
  using Blocks = std::vector<std::shared_ptr<DeviceBlock>>;
  auto held = std::make_unique<Blocks>(std::move(blocks));
  cudaUserObject_t object = nullptr;
  executor::check_cuda(
      cudaUserObjectCreate(
          &object, held.get(), [](void* given) { delete static_cast<Blocks*>(given); }, 1,
          cudaUserObjectNoDestructorSync),
      "cudaUserObjectCreate");
  (void)held.release();
  const cudaError_t given = cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove);
  if (given != cudaSuccess) cudaUserObjectRelease(object, 1);
  executor::check_cuda(given, "cudaGraphRetainUserObject");
}

}  // namespace ropewalk::link
