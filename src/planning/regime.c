/* Cache and reuse against stream and evict: stalls, their difference summed, and a price. */
#include "planning/regime.h"

#include <assert.h>
#include <math.h>

void mp_regime_defaults(mp_regime_config *config)
{
    *config = (mp_regime_config){.margin = 0.02, .change = 0.25};
}

double mp_regime_streamed_stalls(const mp_regime_ahead *ahead, double computing)
{
    double wanted = ahead->before, useful = ahead->again;
    if (ahead->there)
        return ahead->routed - ahead->again;
    if (ahead->all) {
        wanted = ahead->routed - ahead->again + ahead->before + ahead->rest;
        useful = ahead->routed;
    }
    double in_time = wanted > computing ? computing / wanted : 1;
    return ahead->routed - useful * in_time;
}

mp_regime mp_regime_update(mp_regime_balance *balance, const mp_regime_config *config,
                           const mp_regime_turn *turn)
{
    assert(config->margin >= 0 && config->change >= 0);
    double gain = turn->stalls - turn->other - config->margin * (turn->computing + turn->stalls);
    if (!isfinite(gain))
        return balance->now;
    balance->regret = fmax(balance->regret + gain, 0);
    if (balance->regret > config->change * turn->slots) {
        balance->now = balance->now == MP_REGIME_CACHE ? MP_REGIME_STREAM : MP_REGIME_CACHE;
        balance->regret = 0;
    }
    return balance->now;
}
