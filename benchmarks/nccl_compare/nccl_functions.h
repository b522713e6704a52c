// The functions of one libnccl.so.2, by its path: NVIDIA's and Ropewalk's run in the same program.
#pragma once

#include <dlfcn.h>

#include <stdexcept>
#include <string>

#include "capi/nccl/nccl_api.h"

struct NcclFunctions {
  explicit NcclFunctions(const std::string& path)
      : library_(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (library_ == nullptr) throw std::runtime_error(dlerror());
#define LOAD(name) load(name, "nccl" #name)
    LOAD(GetVersion);
    LOAD(GetUniqueId);
    LOAD(GetErrorString);
    LOAD(GetLastError);
    LOAD(CommInitRank);
    LOAD(CommInitAll);
    LOAD(CommDestroy);
    LOAD(CommAbort);
    LOAD(CommGetAsyncError);
    LOAD(GroupStart);
    LOAD(GroupEnd);
    LOAD(AllReduce);
    LOAD(AllGather);
    LOAD(ReduceScatter);
    LOAD(Broadcast);
    LOAD(Reduce);
    LOAD(Send);
    LOAD(Recv);
#undef LOAD
    // Not in versions before 2.28.
    AlltoAll = reinterpret_cast<decltype(AlltoAll)>(dlsym(library_, "ncclAlltoAll"));
    // Not before 2.27.
    CommWindowRegister =
        reinterpret_cast<decltype(CommWindowRegister)>(dlsym(library_, "ncclCommWindowRegister"));
    MemAlloc = reinterpret_cast<decltype(MemAlloc)>(dlsym(library_, "ncclMemAlloc"));
    // Not before 2.29.
    PutSignal = reinterpret_cast<decltype(PutSignal)>(dlsym(library_, "ncclPutSignal"));
    WaitSignal = reinterpret_cast<decltype(WaitSignal)>(dlsym(library_, "ncclWaitSignal"));
  }

  void check(ncclResult_t result, const char* what) const {
    if (result == ncclSuccess) return;
    throw std::runtime_error(std::string(what) + ": " + GetErrorString(result) + ": " +
                             GetLastError(nullptr));
  }

  decltype(&ncclGetVersion) GetVersion = nullptr;
  decltype(&ncclGetUniqueId) GetUniqueId = nullptr;
  decltype(&ncclGetErrorString) GetErrorString = nullptr;
  decltype(&ncclGetLastError) GetLastError = nullptr;
  decltype(&ncclCommInitRank) CommInitRank = nullptr;
  decltype(&ncclCommInitAll) CommInitAll = nullptr;
  decltype(&ncclCommDestroy) CommDestroy = nullptr;
  decltype(&ncclCommAbort) CommAbort = nullptr;
  decltype(&ncclCommGetAsyncError) CommGetAsyncError = nullptr;
  decltype(&ncclGroupStart) GroupStart = nullptr;
  decltype(&ncclGroupEnd) GroupEnd = nullptr;
  decltype(&ncclAllReduce) AllReduce = nullptr;
  decltype(&ncclAllGather) AllGather = nullptr;
  decltype(&ncclReduceScatter) ReduceScatter = nullptr;
  decltype(&ncclBroadcast) Broadcast = nullptr;
  decltype(&ncclReduce) Reduce = nullptr;
  decltype(&ncclAlltoAll) AlltoAll = nullptr;
  decltype(&ncclCommWindowRegister) CommWindowRegister = nullptr;
  decltype(&ncclMemAlloc) MemAlloc = nullptr;
  decltype(&ncclPutSignal) PutSignal = nullptr;
  decltype(&ncclWaitSignal) WaitSignal = nullptr;
  decltype(&ncclSend) Send = nullptr;
  decltype(&ncclRecv) Recv = nullptr;

 private:
  template <typename Function>
  void load(Function& place, const char* name) {
    place = reinterpret_cast<Function>(dlsym(library_, name));
    if (place == nullptr) throw std::runtime_error(std::string("the library lacks ") + name);
  }

  void* library_;  // never closed: its threads may still run
};
