// The GPUs that this process sees.
#include <nlohmann/json.hpp>

#include "comm/cuda/cuda_error.h"
#include "comm/device_group.h"

namespace ropewalk::comm {

int device_count() {
  int count = 0;
  check_cuda(cudaGetDeviceCount(&count), "counting the GPUs");
  return count;
}

std::string describe_device(int device) {
  if (const int count = device_count(); device < 0 || device >= count) {
    throw Error(Errc::kInvalidArgument, "device: {} is not one of the {} GPUs", device, count);
  }
  const CurrentDevice current(device);
  cudaDeviceProp properties{};
  check_cuda(cudaGetDeviceProperties(&properties, device), "describing a GPU");
  char bus_id[20] = {};
  check_cuda(cudaDeviceGetPCIBusId(bus_id, sizeof bus_id, device), "naming a GPU");
  std::size_t free = 0;
  std::size_t total = 0;
  check_cuda(cudaMemGetInfo(&free, &total), "asking for free device memory");
  const nlohmann::json json = {
      {"device", device},
      {"name", properties.name},
      {"bus_id", bus_id},
      {"capability", fmt::format("{}.{}", properties.major, properties.minor)},
      {"total_bytes", total},
      {"free_bytes", free}};
  return json.dump();
}

}  // namespace ropewalk::comm
