/* services.h — the functions that the module calls in libmoepage.so. */
#ifndef MP_CUDA_SERVICES_H
#define MP_CUDA_SERVICES_H

#include "device/module.h"

/* Before the first failure can be recorded; sentences recorded earlier are lost. */
void mp_cuda_services_set(const mp_module_services *library);

#endif
