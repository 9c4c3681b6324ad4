// Launches that depend on what the device found.

namespace contract {

// A kernel that does nothing unless a word in memory has a value.
template <class KERNEL>
struct When {
  using Kernel = KERNEL;

  struct Arguments {
    const int *word;
    int value, unused;
    typename Kernel::Arguments arguments;
  };

  template <auto METHOD>
  static __device__ void run(const Arguments &a) {
    if (*a.word == a.value) METHOD(a.arguments);
  }
};

}  // namespace contract
