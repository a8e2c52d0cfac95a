#!/bin/bash
# Keeps the guest's clock in step with the host's, as root. It stands still while the VM is paused,
# and while the host sleeps. The machine's RTC does not: QEMU reads the host's clock for it.

RTC=/sys/class/rtc/rtc0/since_epoch
PERIOD=2 # seconds

# Both have whole seconds, which need not begin at the same moment.
keep_in_step() {
    local rtc now next
    read -r rtc <"$RTC" || return
    printf -v now '%(%s)T' -1
    ((rtc - now > 1 || now - rtc > 1)) || return 0
    next=$rtc
    while ((next == rtc)); do
        read -r next <"$RTC" || return
    done
    date --set="@$next" >/dev/null && echo "the clock was set from $now to $next"
}

[[ "$0" == "${BASH_SOURCE[0]}" ]] || return 0 # only the functions

[[ -e "$RTC" ]] || modprobe -q rtc_pl031 || true # of 64-bit ARM
exec {silent}<> <(:) # nothing is written to it; a process for each pause takes an emulated guest long
while keep_in_step; do
    read -r -t "$PERIOD" -u "$silent" || true
done
