/* order.h — for qsort. */
#ifndef EXAMPLE_ORDER_H
#define EXAMPLE_ORDER_H

/* Doubles that are numbers, the least first. */
static inline int order_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

#endif
