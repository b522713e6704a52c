#include "capi/mpcomm/prepared.h"

#include <cerrno>
#include <new>

namespace ropewalk::mpcomm {

// When the first one is asked for: most programs ask for none.
int Prepared::allocate() {
  if (sets_ != nullptr) return MP_SUCCESS;
  void* memory = nullptr;
  const int result = mp_kernel_memory(kSets * sizeof(comm_dev_descs), &memory);
  if (result != MP_SUCCESS) return result;
  sets_ = static_cast<comm_dev_descs*>(memory);
  for (int k = 0; k < kSets; ++k) new (sets_ + k) comm_dev_descs();
  return MP_SUCCESS;
}

int Prepared::add_ready(std::uint32_t* word, std::uint32_t value) {
  int result = allocate();
  if (result != MP_SUCCESS) return result;
  comm_dev_descs& set = current();
  if (set.n_ready == comm_dev_descs::max_n_descs) return ENOMEM;
  result = ::mp::mlx5::get_descriptors(&set.ready[set.n_ready], word, value);
  if (result == MP_SUCCESS) ++set.n_ready;
  return result;
}

bool Prepared::has_room_for_send() const {
  return sets_ == nullptr || sets_[at_].n_tx < comm_dev_descs::max_n_descs;
}

int Prepared::add_send(mp_request_t* request) {
  int result = allocate();
  if (result != MP_SUCCESS) return result;
  comm_dev_descs& set = current();
  if (set.n_tx == comm_dev_descs::max_n_descs) return ENOMEM;
  result = ::mp::mlx5::get_descriptors(&set.tx[set.n_tx], request);
  if (result == MP_SUCCESS) ++set.n_tx;
  return result;
}

int Prepared::add_waits(std::vector<mp_request_t>& requests) {
  int result = allocate();
  if (result != MP_SUCCESS) return result;
  comm_dev_descs& set = current();
  if (requests.size() > static_cast<std::size_t>(comm_dev_descs::max_n_descs - set.n_wait)) {
    return ENOMEM;
  }
  std::vector<mp_kernel_wait_t> made(requests.size());
  result = mp_kernel_wait(static_cast<std::uint32_t>(made.size()), requests.data(), made.data());
  if (result != MP_SUCCESS) return result;
  for (const mp_kernel_wait_t& each : made) {
    set.wait[set.n_wait++] = ::mp::mlx5::wait_descriptor(each);
  }
  return MP_SUCCESS;
}

comm_dev_descs_t Prepared::take() {
  if (allocate() != MP_SUCCESS) return nullptr;
  comm_dev_descs* const given = &current();
  at_ = (at_ + 1) % kSets;
  current() = comm_dev_descs();
  return given;
}

}  // namespace ropewalk::mpcomm
