package bed

import "time"

// Lead is how long before its begin a process is started: longer than a node takes to start one.
const Lead = 400 * time.Millisecond

// StartTogether waits until the moment in $0 (seconds since 1970) and then becomes the rest of the arguments, so that the
// processes of a trial begin at once, however long each took to be started.
const StartTogether = `n=$(date +%s%N); d=$(($0 - n)); [ $d -gt 0 ] && sleep $((d / 1000000000)).$(printf %09d $((d % 1000000000))); exec "$@"`
