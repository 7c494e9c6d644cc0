# Functions for the scripts of TestPowerCut, which runs them with bash -eu in a machine of the lab, one for each root of Berth's. The
# script sets N, the root's name. R is the root: a file system of its own, on disk $D.
R=/srv/$N
S=/root/$N.yaml         # the node's spec
told=/run/told/$N/synced # what the node's program has synced, as it says where a power cut takes it away

b() { berth --root "$R" "$@"; }

fail() {
	echo "$@"
	exit 1
}

awaiting() { [ $SECONDS -lt "$BOUND" ] && sleep 0.1; }

# up: mounts the root as after a boot, with an empty folder of live state. The runtime was chosen before.
up() {
	mkdir -p "$R" && chmod 755 "$R"
	mount -o "$OPTIONS" "$D" "$R"
	mkdir -p "$R/run" "$R/lib" "$R/pool" "$R/pool2"
	mount -t tmpfs -o mode=711 tmpfs "$R/run"
	[ -e "$R/lib/site-id" ] || chmod 700 "$R/lib"
	cp /var/lib/berth/runtime.json "$R/lib/"
	install -d -m 777 "/run/told/$N"
}

# first: makes the file system and what all acts find in the root.
first() {
	"mkfs.$F" "$QUIET" "$D" >/dev/null
	up
	echo 'allow: [{from: 100000, count: 100}]' >"$R/users.yaml"
	printf 'host: lab\nlocal: true\n' >"$R/berthd.yaml"
	b pool add default --dir "$R/pool"
	cat >"$S" <<-END
		name: $N
		image: dir:/srv/busybox
		command: [/bin/sh, /srv/program]
		users: [{from: 100000, count: 100, as: same}, {from: 200000, count: 70000, as: private}]
		memory: {max: 64MiB}
		network: [{mode: bridge}]
		mounts: [{source: /run/told/$N, target: /told}]
		scratch: [{target: /x, size: 16MiB}]
	END
}

there() { [ -e "$R/lib/nodes/$N" ]; }

gone() {
	if there; then b rm --force "$N"; fi
	rm -f "$told"
}

# running: the node is there, runs, and its program has synced its files.
running() {
	there || b apply -f "$S"
	synced
}

synced() {
	while [ ! -e "$told" ]; do awaiting || fail "the node's program synced nothing: $(b logs "$N" 2>&1)"; done
}

# kept: what a power cut may not change of the node: what its program synced, its ids, its MAC, the site.
kept() {
	[ -e "$told" ] || return 0
	cat "$told" "$R/lib/site-id"
	local each
	for each in "$R"/lib/ids/* "$R"/lib/macs/*; do echo "${each##*/} $(readlink "$each")"; done
}

# act POINT COMMAND…: runs it to its end, or to a fault point, at which it stays.
act() {
	local point=$1 pid state
	shift
	if [ -z "$point" ]; then
		"$@"
		return
	fi
	BERTH_FAULT_STOP=$point BERTH_FAULT_LOG=/run/power/$N.points setsid "$@" </dev/null >"/run/power/$N.said" 2>&1 &
	pid=$!
	while :; do
		state=$(sed -n 's/^State:[^A-Z]*\([A-Z]\).*/\1/p' "/proc/$pid/status" 2>/dev/null || true)
		case $state in
		T) return ;;
		'' | Z) fail "it ended and never was at \"$point\": $(cat "/run/power/$N.said" "/run/power/$N.points")" ;;
		esac
		awaiting || fail "it came to no end, and not to \"$point\": $(cat "/run/power/$N.said")"
	done
}

# agent: starts the agent, which stays, and returns when its cluster state answers.
agent() {
	setsid berthd --root "$R" </dev/null >"/run/power/$N.agent" 2>&1 &
	echo $! >"/run/power/$N.pid"
	while ! grep -q "the cluster state answers" "/run/power/$N.agent"; do
		awaiting || fail "the agent does not answer: $(cat "/run/power/$N.agent")"
	done
}

# records: each record is a whole one, the old or the new.
records() {
	local f
	for f in "$R"/lib/nodes/*/spec.json "$R"/lib/nodes/*/journal "$R"/lib/scratch/*.json "$R"/lib/images/records/* \
		"$R"/lib/images/packed/records/*.json "$R"/lib/site-id "$R"/lib/site.json "$R"/lib/pools/* "$R"/ca/* "$R"/certs/*; do
		case $f in */lock | *.tmp) continue ;; esac
		[ -e "$f" ] || continue
		# A journal that is alone in its folder had not yet begun.
		if [ "${f##*/}" = journal ] && [ ! -s "$f" ] && [ "$(ls -A "${f%/*}")" = journal ]; then continue; fi
		[ "$(head -n1 "$f" | tr -d '\0' | wc -l)" = 1 ] && head -n1 "$f" | tr -d '\0' | cmp -s - <(head -n1 "$f") ||
			fail "after the power cut $f is cut: $(head -c200 "$f" | od -c | head) in $(ls -lA "${f%/*}")"
	done
}

# whole yes|no|perhaps KEPT: after a power cut the commands work, and the node is there, or not, with all that it had.
whole() {
	local c out
	records
	for c in "pool ls" "image ls" ls repair; do
		out=$(b $c 2>&1) || fail "after the power cut berth $c: exit code $?: $out"
		case $out in *broken* | *damaged*) fail "after the power cut berth $c says: $out" ;; esac
	done
	if there; then
		[ "$1" != no ] || fail "the node is there again"
		out=$(b show "$N" 2>&1) || fail "after the power cut berth show: exit code $?: $out"
		out=$(b start "$N" 2>&1) || fail "after the power cut berth start: exit code $?: $out"
		synced
		[ -z "$2" ] || [ "$2" = "$(kept)" ] || fail "of the node was kept"$'\n'"$2"$'\n'"and is"$'\n'"$(kept)"
		return
	fi
	[ "$1" != yes ] && { [ "$1" = no ] || [ -z "$2" ]; } || fail "the node is gone; its program had synced: $2"
	for c in "$R"/pool/berth-*/"$N".* "$R"/lib/ids/* "$R"/lib/macs/*; do
		[ ! -e "$c" ] && [ ! -L "$c" ] || fail "$c is there without its node"
	done
}

# trees FOLDER…: what is in these folders, for a comparison.
trees() { find "$@" -printf '%p %y %m %U:%G %s %l\n' | sort; find "$@" -type f -print0 | sort -z | xargs -0r sha256sum; }
