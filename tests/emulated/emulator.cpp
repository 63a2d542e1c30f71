// A GPU's block on one thread of a CPU: every thread of the block is a fiber, 32 of them are the lanes of a warp, and what
// CUDA has for them is here. So the branch of the sources that NVRTC compiles runs, with the sizes of blocks that it has.
//
// Fibers run until they meet: lanes of a warp in a shuffle, a tensor core or __syncwarp, all threads in __syncthreads. Who
// runs first is a schedule, see Order: what depends on it is a race. It is an error to meet at different places, not to
// meet at all, to read 16 bytes elsewhere than at a multiple of 16, to leave an array. Memory that is shared holds no
// numbers when a block begins.
//
// A kernel may begin before those before it have ended. So it is an error if a thread does not wait for them. Where tensors
// lie on pages of their own, these pages are closed until all threads of the block wait: whatever is there by then, and
// whenever earlier kernels write it, the kernel cannot have read it, or written to it.

#include <math.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#define __global__
#define __device__
#define __shared__ __attribute__((section("shared_memory"))) static
#define __launch_bounds__(...)
// The compiler's checks are for the sources.
#define UNCHECKED __attribute__((no_sanitize("alignment", "bounds")))
#define APART UNCHECKED __attribute__((noipa))  // other fibers run within: nothing is known of memory behind it

extern unsigned char __start_shared_memory[] __attribute__((weak)), __stop_shared_memory[] __attribute__((weak));

struct Place {
    unsigned x;
};
static Place threadIdx, blockIdx, blockDim;

namespace gpu {

constexpr unsigned WARP = 32, MOST = 1024;
constexpr size_t STACK = 128 * 1024;

enum Order { FORWARD, BACKWARD, RANDOM };  // of warps, of their lanes, and of blocks
enum State { READY, IN_WARP, IN_BLOCK, WAITING, ENDED };

struct Fiber {
    void* at[5];         // where it goes on
    bool made = false;   // it has a stack
    State state = ENDED;
    int line = 0;        // of the source, where it waits
    bool said = false;   // what it says in __syncthreads_or
    bool waited = false; // for earlier kernels
    unsigned in[16], out[4];
};

// Pages of a tensor.
struct Pages {
    unsigned char* begin;
    long long bytes, before;  // before: what of mprotect is allowed before the wait
    const char* name;
};

struct Machine {
    Fiber fibers[MOST];
    std::vector<unsigned> warps, lanes, blocks;  // in the order in which they run
    unsigned met[MOST / WARP];                   // lanes of each warp that wait for the others
    unsigned threads = 0, own = 0, waiting = 0, early = 0, ended = 0;  // early: threads that wait for earlier kernels
    const Pages* pages = nullptr;
    long long count = 0;  // of pages
    struct sigaction others;
    bool said = false, any = false;
    Order order = FORWARD;
    std::mt19937 chance;
    std::string trouble;
    void *scheduler[5], *given = nullptr;
    ucontext_t maker;
    void (*work)(void*) = nullptr;
};
static Machine m;

APART static void go_to(void** at) { __builtin_longjmp(at, 1); }

// From the scheduler to a fiber, or back.
APART static void change(void** from, void** to) {
    if (__builtin_setjmp(from) == 0) go_to(to);
}

APART [[noreturn]] static void fail(const std::string& what) {
    const Fiber& own = m.fibers[m.own];
    if (m.trouble.empty()) {
        m.trouble = what + ", block " + std::to_string(blockIdx.x) + ", thread " + std::to_string(m.own) + ", line " + std::to_string(own.line);
    }
    go_to(m.scheduler);
    __builtin_unreachable();
}

APART static void pause() {
    const unsigned own = m.own;
    change(m.fibers[own].at, m.scheduler);
    threadIdx.x = own;
}

APART static void allow(bool everything) {
    for (long long i = 0; i < m.count; ++i) {
        const Pages& own = m.pages[i];
        if (own.name) mprotect(own.begin, static_cast<size_t>(own.bytes), everything ? PROT_READ | PROT_WRITE : static_cast<int>(own.before));
    }
}

// Memory that is closed was read or written.
static void on_closed(int, siginfo_t* what, void*) {
    const unsigned char* at = static_cast<unsigned char*>(what->si_addr);
    for (long long i = 0; i < m.count; ++i) {
        const Pages& own = m.pages[i];
        if (at < own.begin || at >= own.begin + own.bytes) continue;
        if (own.name) fail(std::string(own.name) + " is read or written before the wait for earlier kernels");
        fail("memory behind a tensor is read or written");
    }
    sigaction(SIGSEGV, &m.others, nullptr);  // not ours
}

APART static void wait_for_earlier(int line) {
    Fiber& own = m.fibers[m.own];
    own.line = line;
    own.waited = true;
    if (!m.count) return;
    own.state = WAITING;
    if (++m.early == m.threads) {
        m.early = 0;
        allow(true);
        for (unsigned i = 0; i < m.threads; ++i) m.fibers[i].state = READY;
    }
    pause();
}

// What every fiber runs, again for each block.
static void live() {
    for (;;) {
        const unsigned own = m.own;
        m.work(m.given);
        if (!m.fibers[own].waited) fail("a thread has not waited for earlier kernels");
        m.fibers[own].state = ENDED;
        ++m.ended;
        pause();
    }
}

APART static void resume(unsigned own) {
    Fiber& fiber = m.fibers[own];
    m.own = own;
    threadIdx.x = own;
    if (fiber.made) return change(m.scheduler, fiber.at);
    fiber.made = true;
    ucontext_t context;
    getcontext(&context);
    context.uc_stack.ss_sp = mmap(nullptr, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    context.uc_stack.ss_size = STACK;
    makecontext(&context, live, 0);
    if (__builtin_setjmp(m.scheduler) == 0) setcontext(&context);
}

// Runs all lanes of a warp until none can go on.
static void run_warp(unsigned warp) {
    for (bool some = true; some;) {
        some = false;
        if (m.order == RANDOM) std::shuffle(m.lanes.begin(), m.lanes.end(), m.chance);
        for (unsigned lane : m.lanes) {
            const unsigned own = warp * WARP + lane;
            if (m.fibers[own].state != READY) continue;
            some = true;
            resume(own);
            if (!m.trouble.empty()) return;
        }
        if (m.order == RANDOM && m.chance() % 2) return;  // others overtake it
    }
}

static void run_block() {
    m.waiting = m.early = m.ended = 0;
    memset(m.met, 0, sizeof m.met);
    for (unsigned own = 0; own < m.threads; ++own) {
        m.fibers[own].state = READY;
        m.fibers[own].waited = false;
    }
    allow(false);
    memset(__start_shared_memory, 0xff, static_cast<size_t>(__stop_shared_memory - __start_shared_memory));
    while (m.ended < m.threads) {
        if (m.order == RANDOM) std::shuffle(m.warps.begin(), m.warps.end(), m.chance);
        bool some = false;
        for (unsigned warp : m.warps) {
            for (unsigned lane = 0; lane < WARP && !some; ++lane) some = m.fibers[warp * WARP + lane].state == READY;
            run_warp(warp);
            if (!m.trouble.empty()) return;
        }
        if (!some) {
            m.own = m.warps[0] * WARP;
            m.trouble = "threads wait for ever: " + std::to_string(m.waiting) + " at __syncthreads, " + std::to_string(m.early) + " for earlier kernels, " + std::to_string(m.ended) + " have ended";
            return;
        }
    }
}

template <typename Parameters>
static const char* launch(void (*kernel)(Parameters), const void* parameters, long long blocks, long long threads, int order, unsigned seed, const Pages* pages, long long count) {
    static std::mutex one_at_a_time;
    const std::lock_guard<std::mutex> lock(one_at_a_time);
    struct Call {
        void (*kernel)(Parameters);
        const Parameters& given;
    } call{kernel, *static_cast<const Parameters*>(parameters)};
    m.given = &call;
    m.work = [](void* own) { static_cast<Call*>(own)->kernel(static_cast<Call*>(own)->given); };
    m.order = static_cast<Order>(order);
    m.chance.seed(seed);
    m.trouble.clear();
    m.pages = pages;
    m.count = count;
    struct Caught {  // while this is there
        Caught() {
            struct sigaction own = {};
            own.sa_sigaction = on_closed;
            own.sa_flags = SA_SIGINFO | SA_NODEFER;
            sigaction(SIGSEGV, &own, &m.others);
            for (long long i = 0; i < m.count; ++i) {
                if (!m.pages[i].name) mprotect(m.pages[i].begin, static_cast<size_t>(m.pages[i].bytes), PROT_NONE);
            }
        }
        ~Caught() {
            allow(true);
            sigaction(SIGSEGV, &m.others, nullptr);
        }
    } caught;
    m.threads = blockDim.x = static_cast<unsigned>(threads);
    auto in_order = [&](std::vector<unsigned>& numbers, size_t count) {
        numbers.resize(count);
        for (unsigned i = 0; i < count; ++i) numbers[i] = m.order == BACKWARD ? static_cast<unsigned>(count) - 1 - i : i;
        if (m.order == RANDOM) std::shuffle(numbers.begin(), numbers.end(), m.chance);
    };
    in_order(m.blocks, static_cast<size_t>(blocks));
    for (unsigned block : m.blocks) {
        in_order(m.warps, m.threads / WARP);
        in_order(m.lanes, WARP);
        blockIdx.x = block;
        run_block();
        if (m.trouble.empty()) continue;
        for (Fiber& fiber : m.fibers) fiber.made = false;  // they stand anywhere; their stacks are lost
        return m.trouble.c_str();
    }
    return nullptr;
}

// All threads of the block meet.
APART static bool meet_block(bool mine, int line) {
    Fiber& own = m.fibers[m.own];
    own.state = IN_BLOCK;
    own.line = line;
    m.any = (m.waiting > 0 && m.any) || mine;
    if (++m.waiting == m.threads) {
        m.waiting = 0;
        m.said = m.any;
        for (unsigned i = 0; i < m.threads; ++i) {
            if (m.fibers[i].line != line) fail("threads meet at different places, lines " + std::to_string(m.fibers[i].line) + " and " + std::to_string(line));
            m.fibers[i].state = READY;
            m.fibers[i].said = m.said;
        }
    }
    if (m.ended) fail("threads wait for one that has ended");
    pause();
    return m.fibers[m.own].said;
}

// All lanes of a warp meet; the last one does the work, for which each has left its numbers.
template <typename Work>
UNCHECKED static const unsigned* meet_warp(int line, Work work) {
    Fiber& own = m.fibers[m.own];
    const unsigned first = m.own / WARP * WARP;
    own.state = IN_WARP;
    own.line = line;
    if (++m.met[first / WARP] == WARP) {
        m.met[first / WARP] = 0;
        Fiber* lanes = &m.fibers[first];
        for (unsigned lane = 0; lane < WARP; ++lane) {
            if (lanes[lane].line != line) fail("lanes meet at different places, lines " + std::to_string(lanes[lane].line) + " and " + std::to_string(line));
        }
        work(lanes);
        for (unsigned lane = 0; lane < WARP; ++lane) lanes[lane].state = READY;
    }
    pause();
    return m.fibers[m.own].out;
}

UNCHECKED static inline unsigned word(float x) {
    unsigned bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

UNCHECKED static inline float number(unsigned bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

UNCHECKED static inline float of_half(unsigned bits) {
    const unsigned short own = static_cast<unsigned short>(bits);
    _Float16 x;
    memcpy(&x, &own, sizeof x);
    return x;
}

UNCHECKED static inline float of_bfloat(unsigned bits) { return number(bits << 16); }

UNCHECKED static int shuffle(unsigned mask, int mine, int bits, int line) {
    if (mask != 0xffffffff) fail("a shuffle without all lanes");
    unsigned* in = m.fibers[m.own].in;
    in[0] = static_cast<unsigned>(mine);
    in[1] = static_cast<unsigned>(bits);
    return static_cast<int>(*meet_warp(line, [](Fiber* lanes) {
        for (unsigned lane = 0; lane < WARP; ++lane) lanes[lane].out[0] = lanes[(lane ^ lanes[lane].in[1]) % WARP].in[0];
    }));
}

// What the sources say in PTX; emulated.py makes a call of each.
UNCHECKED static void ptx(int, const char* text, float& wide, unsigned short bits) {
    if (strcmp(text, "cvt.f32.f16 %0, %1;") != 0) fail(text);
    wide = of_half(bits);
}

UNCHECKED static void ptx(int, const char* text, unsigned short& bits, float x) {
    if (strcmp(text, "cvt.rn.f16.f32 %0, %1;") != 0) fail(text);
    const _Float16 narrow = static_cast<_Float16>(x);
    memcpy(&bits, &narrow, sizeof bits);
}

UNCHECKED static void ptx(int line, const char* text, const char*) {
    if (strcmp(text, "griddepcontrol.wait;") == 0) return wait_for_earlier(line);
    if (strcmp(text, "griddepcontrol.launch_dependents;") != 0) fail(text);
    if (!m.fibers[m.own].waited) fail("the next kernel begins, and this one has not waited");
}

// mma.m16n8k16, by "Matrix Fragments for mma.m16n8k16 with floating point type" of the PTX ISA: register r of lane l has
// of A row l / 4 (+ 8 if r is odd), columns l % 4 * 2 and the next (+ 8 from r = 2 on); of B rows l % 4 * 2 and the next
// (+ 8 if r is 1), column l / 4; of D row l / 4 (+ 8 from r = 2 on), column l % 4 * 2 (+ 1 if r is odd).
[[maybe_unused]] UNCHECKED static void ptx(int line, const char* text, float& d0, float& d1, float& d2, float& d3, unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
    const std::string said(text), rest = " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};";
    const bool half = said == "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32" + rest;
    if (!half && said != "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32" + rest) fail(said);
    const unsigned given[] = {a0, a1, a2, a3, b0, b1, word(d0), word(d1), word(d2), word(d3)};
    memcpy(m.fibers[m.own].in, given, sizeof given);
    const unsigned* out = meet_warp(line, [half](Fiber* lanes) {
        float a[16][16], b[16][8];
        for (unsigned lane = 0; lane < WARP; ++lane) {
            for (unsigned r = 0; r < 6; ++r) {
                for (unsigned side = 0; side < 2; ++side) {
                    const unsigned bits = lanes[lane].in[r] >> 16 * side & 0xffff, pair = lane % 4 * 2 + side;
                    const float x = half ? of_half(bits) : of_bfloat(bits);
                    if (r < 4) a[lane / 4 + r % 2 * 8][pair + r / 2 * 8] = x;
                    else b[pair + (r - 4) * 8][lane / 4] = x;
                }
            }
        }
        for (unsigned lane = 0; lane < WARP; ++lane) {
            for (unsigned r = 0; r < 4; ++r) {
                const unsigned row = lane / 4 + r / 2 * 8, column = lane % 4 * 2 + r % 2;
                float sum = 0;
                for (unsigned k = 0; k < 16; ++k) sum += a[row][k] * b[k][column];
                lanes[lane].out[r] = word(number(lanes[lane].in[6 + r]) + sum);
            }
        }
    });
    d0 = number(out[0]);
    d1 = number(out[1]);
    d2 = number(out[2]);
    d3 = number(out[3]);
}

// How the compiler's checks say where an address is no multiple, or an index is behind an array.
struct Where {
    const char* file;
    unsigned line, column;
};

static void bad_access(const char* what, const Where* where) {
    m.fibers[m.own].line = static_cast<int>(where->line);
    fail(std::string(what) + " in " + where->file);
}
}  // namespace gpu

extern "C" {
__attribute__((visibility("hidden"))) void __ubsan_handle_type_mismatch_v1(gpu::Where* where, void*) { gpu::bad_access("an address that is no multiple of what is read", where); }
__attribute__((visibility("hidden"))) void __ubsan_handle_out_of_bounds(gpu::Where* where, void*) { gpu::bad_access("an index outside of an array", where); }
}

#define __syncthreads() gpu::meet_block(false, __LINE__)
#define __syncthreads_or(mine) gpu::meet_block((mine) != 0, __LINE__)
#define __syncwarp() gpu::meet_warp(__LINE__, [](gpu::Fiber*) {})
#define __shfl_xor_sync(mask, mine, bits) gpu::shuffle(mask, mine, bits, __LINE__)
#define __float_as_uint gpu::word
#define __uint_as_float gpu::number

static inline float rsqrtf(float x) { return 1 / sqrtf(x); }

// A source and its kernels, of emulated.py.
#define __CUDACC__ 1
#define __CUDA_ARCH__ 900
namespace {  // so that what threads share is in one section, templates too
#include SOURCE
}

#define RUN(name)                                                                                                              \
    extern "C" int words_of_##name() { return static_cast<int>(gpu::size_of(name) / 8); }                                     \
    extern "C" const char* run_##name(const void* parameters, long long blocks, long long threads, int order, unsigned seed,   \
                                      const gpu::Pages* pages, long long count) {                                              \
        return gpu::launch(name, parameters, blocks, threads, order, seed, pages, count);                                      \
    }
namespace gpu {
template <typename Parameters>
static constexpr size_t size_of(void (*)(Parameters)) {
    return sizeof(Parameters);
}
}  // namespace gpu
KERNELS
