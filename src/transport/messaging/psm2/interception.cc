#include "transport/messaging/psm2/interception.h"

#include <dlfcn.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>

namespace ropewalk::transport::psm2 {
namespace {

// What the dynamic section says of the relocations.
struct Tables {
  const ElfW(Sym) * symbols = nullptr;
  const char* names = nullptr;
  const ElfW(Rela) * calls = nullptr;  // DT_JMPREL
  std::size_t call_bytes = 0;
  const ElfW(Rela) * others = nullptr;  // DT_RELA: entries of libraries built with -fno-plt
  std::size_t other_bytes = 0;
};

Tables tables_of(const link_map& library) {
  Tables tables;
  for (const ElfW(Dyn)* entry = library.l_ld; entry->d_tag != DT_NULL; ++entry) {
    const auto at = entry->d_un.d_ptr;  // relocated by the loader
    switch (entry->d_tag) {
      case DT_SYMTAB: tables.symbols = reinterpret_cast<const ElfW(Sym)*>(at); break;
      case DT_STRTAB: tables.names = reinterpret_cast<const char*>(at); break;
      case DT_JMPREL: tables.calls = reinterpret_cast<const ElfW(Rela)*>(at); break;
      case DT_PLTRELSZ: tables.call_bytes = entry->d_un.d_val; break;
      case DT_RELA: tables.others = reinterpret_cast<const ElfW(Rela)*>(at); break;
      case DT_RELASZ: tables.other_bytes = entry->d_un.d_val; break;
      default: break;
    }
  }
  return tables;
}

// The replaced entries, to be restored.
class Replaced {
 public:
  Replaced() = default;
  Replaced(const Replaced&) = delete;
  Replaced& operator=(const Replaced&) = delete;
  ~Replaced() {
    const std::lock_guard lock(mutex_);
    for (const auto& [entry, original] : originals_) {
      __atomic_store_n(entry, original, __ATOMIC_RELEASE);
    }
  }
  void add(void** entry) {
    const std::lock_guard lock(mutex_);
    originals_.emplace(entry, *entry);
  }

 private:
  std::mutex mutex_;
  std::map<void**, void*> originals_;
};
Replaced& replaced() {
  static Replaced all;
  return all;
}

// The page may be read-only since the loader was done with it (RELRO).
bool replace(void** entry, void* replacement) {
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  auto* const begin =
      reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(entry) & ~(page - 1));
  if (mprotect(begin, page, PROT_READ | PROT_WRITE) != 0) return false;
  replaced().add(entry);
  __atomic_store_n(entry, replacement, __ATOMIC_RELEASE);
  // Left writable: whether it was before is not known here, and its neighbours may need to be.
  return true;
}

}  // namespace

bool intercept(void* handle, const char* function, void* replacement) {
#if defined(__x86_64__)
  link_map* library = nullptr;
  if (dlinfo(handle, RTLD_DI_LINKMAP, &library) != 0 || library == nullptr) return false;
  const Tables tables = tables_of(*library);
  if (tables.symbols == nullptr || tables.names == nullptr) return false;
  bool any = false;
  const auto search = [&](const ElfW(Rela) * relocations, std::size_t bytes) {
    for (std::size_t i = 0; relocations != nullptr && i < bytes / sizeof *relocations; ++i) {
      const auto type = ELF64_R_TYPE(relocations[i].r_info);
      if (type != R_X86_64_JUMP_SLOT && type != R_X86_64_GLOB_DAT) continue;
      const ElfW(Sym)& symbol = tables.symbols[ELF64_R_SYM(relocations[i].r_info)];
      if (std::strcmp(tables.names + symbol.st_name, function) != 0) continue;
      any |=
          replace(reinterpret_cast<void**>(library->l_addr + relocations[i].r_offset), replacement);
    }
  };
  search(tables.calls, tables.call_bytes);
  search(tables.others, tables.other_bytes);
  return any;
#else
  (void)handle, (void)function, (void)replacement;
  return false;  // libpsm2 is for x86-64 alone
#endif
}

}  // namespace ropewalk::transport::psm2
