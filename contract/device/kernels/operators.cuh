// y = op(x) and z = op(x, y) in the type of computation, without overflow where the result is finite.

namespace contract {

enum class Operator {
  IDENTITY, SQRT, RELU, CONJ, RCP, SIGMOID, TANH, EXP, LOG, ABS, NEG, SIN, COS, TAN, SINH, COSH, ASIN, ACOS,
  ATAN, ASINH, ACOSH, ATANH, CEIL, FLOOR, MISH, SWISH, SOFT_PLUS, SOFT_SIGN
};
enum class BinaryOperator { ADD, MUL, MAX, MIN };

template <class T> __device__ inline bool is_infinite(T x) { return x - x != x - x && x == x; }

// max(x, y); NaN if either is.
template <class T>
__device__ inline T larger(T x, T y) {
  if constexpr (is_same<T, Bool>) return {(unsigned char)(x.value | y.value)};
  else return x > y || x != x ? x : y;
}
template <class T>
__device__ inline T smaller(T x, T y) {
  if constexpr (is_same<T, Bool>) return {(unsigned char)(x.value & y.value)};
  else return x < y || x != x ? x : y;
}

// 1 / (1 + e^-x), by e^-|x|, which does not overflow.
template <class T>
__device__ inline T sigmoid(T x) {
  const T t = exp(-fabs(x));
  return (x < 0 ? t : T(1)) / (1 + t);
}

// x / (1 + e^-x). Below 0 it is (x h) (h / (1 + h^2)) with h = e^(x/2): h is never so small as to be flushed
// to zero where the result is not.
template <class T>
__device__ inline T swish(T x) {
  const T h = exp(-fabs(x) / 2), t = h * h;
  return x < 0 ? x * h * (h / (1 + t)) : x / (1 + t);
}

// x tanh(log(1 + e^x)) = x n / (n + 2 m): n = 1 + 2 t and m = t^2 for x >= 0, else n = t (t + 2) and m = 1.
template <class T>
__device__ inline T mish(T x) {
  const T h = exp(-fabs(x) / 2), t = h * h;
  if (x < 0) return x * h * (h * (t + 2) / (t * (t + 2) + 2));
  return x * ((1 + 2 * t) / (1 + 2 * t + 2 * t * t));
}

template <Operator OP, class T>
__device__ inline T floating(T x) {
  switch (OP) {
    case Operator::SQRT: return sqrt(x);
    case Operator::RELU: return larger(x, T(0));
    case Operator::RCP: return 1 / x;
    case Operator::SIGMOID: return sigmoid(x);
    case Operator::TANH: return tanh(x);
    case Operator::EXP: return exp(x);
    case Operator::LOG: return log(x);
    case Operator::ABS: return fabs(x);
    case Operator::NEG: return -x;
    case Operator::SIN: return sin(x);
    case Operator::COS: return cos(x);
    case Operator::TAN: return tan(x);
    case Operator::SINH: return sinh(x);
    case Operator::COSH: return cosh(x);
    case Operator::ASIN: return asin(x);
    case Operator::ACOS: return acos(x);
    case Operator::ATAN: return atan(x);
    case Operator::ASINH: return asinh(x);
    case Operator::ACOSH: return acosh(x);
    case Operator::ATANH: return atanh(x);
    case Operator::CEIL: return ceil(x);
    case Operator::FLOOR: return floor(x);
    case Operator::MISH: return is_infinite(x) && x < 0 ? T(0) : mish(x);
    case Operator::SWISH: return is_infinite(x) && x < 0 ? T(0) : swish(x);
    case Operator::SOFT_PLUS: return larger(x, T(0)) + log1p(exp(-fabs(x)));
    case Operator::SOFT_SIGN: return is_infinite(x) ? copysign(T(1), x) : x / (1 + fabs(x));
    default: return x;
  }
}

template <Operator OP, class T>
__device__ inline T apply(T x) {
  if constexpr (OP == Operator::IDENTITY) {
    return x;
  } else if constexpr (is_complex<T>) {
    static_assert(OP == Operator::CONJ);
    return {x.re, -x.im};
  } else if constexpr (is_float<T>) {
    return floating<OP>(x);
  } else {
    static_assert(OP == Operator::RELU);
    return x > 0 ? x : T(0);
  }
}

template <BinaryOperator OP, class T>
__device__ inline T combine(T x, T y) {
  if constexpr (OP == BinaryOperator::ADD) return add(x, y);
  else if constexpr (OP == BinaryOperator::MUL) return multiply(x, y);
  else if constexpr (OP == BinaryOperator::MAX) return larger(x, y);
  else return smaller(x, y);
}

// The smallest and the largest value of a type: infinite, where there is infinity.
template <class T>
__device__ inline T lowest() {
  if constexpr (is_float<T>) return -__int_as_float(0x7f800000);
  else if constexpr (is_same<T, Bool>) return {0};
  else return T(-1) < T(0) ? T(1ull << (8 * sizeof(T) - 1)) : T(0);
}
template <class T>
__device__ inline T highest() {
  if constexpr (is_float<T>) return __int_as_float(0x7f800000);
  else if constexpr (is_same<T, Bool>) return {1};
  else return T(~lowest<T>());
}

// op(x, neutral) = x; a reduction of no elements is this.
template <BinaryOperator OP, class T>
__device__ inline T neutral() {
  if constexpr (OP == BinaryOperator::ADD) return zero<T>();
  else if constexpr (OP == BinaryOperator::MUL) return one<T>();
  else if constexpr (OP == BinaryOperator::MAX) return lowest<T>();
  else return highest<T>();
}

}  // namespace contract
