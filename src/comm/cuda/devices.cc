// The GPUs that this process sees.
#include <nlohmann/json.hpp>

#include "comm/device_group.h"
#include "executor/cuda/cuda_error.h"

namespace ropewalk::comm {

int device_count() {
  if (!why_no_device().empty()) return 0;
  int count = 0;
  executor::check_cuda(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
  return count;
}

std::string device_bus_id(int device) {
  char bus_id[20] = {};
  executor::check_cuda(cudaDeviceGetPCIBusId(bus_id, sizeof bus_id, device),
                       "cudaDeviceGetPCIBusId");
  return bus_id;
}

std::string describe_device(int device) {
  if (const int count = device_count(); device < 0 || device >= count) {
    throw Error(Errc::kInvalidArgument, "device: {} is not one of the {} GPUs", device, count);
  }
  const executor::CurrentDevice current(device);
  cudaDeviceProp properties{};
  executor::check_cuda(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  std::size_t free = 0;
  std::size_t total = 0;
  executor::check_cuda(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  const nlohmann::json json = {
      {"device", device},
      {"name", properties.name},
      {"bus_id", device_bus_id(device)},
      {"capability", fmt::format("{}.{}", properties.major, properties.minor)},
      {"total_bytes", total},
      {"free_bytes", free}};
  return json.dump();
}

}  // namespace ropewalk::comm
