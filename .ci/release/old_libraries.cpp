// What the compiler's headers refer to, and older C libraries and C++ runtimes lack: with it, prebuilt kernels load where
// jaxlib's wheels do. Hidden, so that no other library sees it.
//
// To link the C++ runtime statically would not do: the compiler's own copy asks for a newer C library still.

#include <new>
#include <sstream>

// From glibc 2.32. Whether reference counts need no atomic instructions: they do.
extern "C" {
__attribute__((visibility("hidden"))) char __libc_single_threaded = 0;
}

// From GCC 11.
namespace std {
__attribute__((visibility("hidden"))) void __throw_bad_array_new_length() { throw bad_alloc(); }
}  // namespace std

// From GCC 9: the constructor of a stringstream without arguments, which some levels do not inline.
extern "C" __attribute__((visibility("hidden"))) void _ZNSt7__cxx1118basic_stringstreamIcSt11char_traitsIcESaIcEEC1Ev(
    void* self) {
  new (self) std::stringstream(std::ios_base::in | std::ios_base::out);
}
