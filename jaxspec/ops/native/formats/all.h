// The table of formats.

#ifndef JAXSPEC_FORMATS_ALL_H_
#define JAXSPEC_FORMATS_ALL_H_

#include "int4.h"
#include "iq4_nl.h"
#include "iq4_xs.h"
#include "mxfp4.h"
#include "q2_k.h"
#include "q3_k.h"
#include "q4_0.h"
#include "q4_1.h"
#include "q4_k.h"
#include "q5_0.h"
#include "q5_1.h"
#include "q5_k.h"
#include "q6_k.h"
#include "q8_0.h"

#define JAXSPEC_FORMATS(FORMAT) \
  FORMAT(INT4) FORMAT(IQ4_NL) FORMAT(IQ4_XS) FORMAT(MXFP4) FORMAT(Q2_K) FORMAT(Q3_K) FORMAT(Q4_0) FORMAT(Q4_1) \
  FORMAT(Q4_K) FORMAT(Q5_0) FORMAT(Q5_1) FORMAT(Q5_K) FORMAT(Q6_K) FORMAT(Q8_0)

#endif  // JAXSPEC_FORMATS_ALL_H_
