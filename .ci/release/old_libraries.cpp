// Defines symbols that the compiler's headers refer to and older C libraries and C++ runtimes lack, so that prebuilt
// kernels load wherever jaxlib's wheels do. The symbols are hidden from other libraries.
//
// Linking the C++ runtime statically does not help: the compiler's copy needs an even newer C library.

#include <new>
#include <sstream>

// From glibc 2.32. Nonzero means that reference counts need no atomic instructions; they do need them.
extern "C" {
__attribute__((visibility("hidden"))) char __libc_single_threaded = 0;
}

// From GCC 11.
namespace std {
__attribute__((visibility("hidden"))) void __throw_bad_array_new_length() { throw bad_alloc(); }
}  // namespace std

// From GCC 9: the default constructor of stringstream, which some levels do not inline.
extern "C" __attribute__((visibility("hidden"))) void _ZNSt7__cxx1118basic_stringstreamIcSt11char_traitsIcESaIcEEC1Ev(
    void* self) {
  new (self) std::stringstream(std::ios_base::in | std::ios_base::out);
}
