#include "message/cuda/launch_error.h"

#include "executor/cuda/cuda_error.h"

namespace ropewalk::message {

void check_launch(cudaError_t result, const char* tried) { executor::check_cuda(result, tried); }

}  // namespace ropewalk::message
