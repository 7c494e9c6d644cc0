# The nodes' work as jobs of Slurm. Variables: job ("": as commands in nodes that are there), class (of the template that nodes are made of).
me=$(hostname)

# slurm sets up slurmctld, an agent and a template. The first trial that needs nodes has them made.
slurm() {
	ip link add sl0 type bridge
	ip addr add 198.51.100.1/24 dev sl0
	ip link set sl0 up
	mkdir -p /run/dhcp /etc/berth/templates /etc/berth/slurm-node /usr/local/lib/berth
	printf '%s\n' 'interface sl0' 'start 198.51.100.50' 'end 198.51.100.59' 'opt subnet 255.255.255.0' 'lease_file /run/dhcp/leases' 'pidfile /run/dhcp/pid' >/run/dhcp/conf
	touch /run/dhcp/leases
	systemd-run -q --unit=dhcp busybox udhcpd -f -S /run/dhcp/conf
	for act in resume suspend fail prolog epilog; do ln -s ../../bin/berth-site /usr/local/lib/berth/slurm-$act; done
	berth certs init 127.0.0.1
	printf 'listen: ["127.0.0.1:7611"]\naddress: "127.0.0.1:7611"\n' >/etc/berth/berthd.yaml
	(cd /root && berth certs issue --role operator --for 720h -o slurm.tar slurm)
	install -d -o slurm -m 700 /etc/berth/slurm
	tar -x -C /etc/berth/slurm -f /root/slurm.tar
	chown slurm: /etc/berth/slurm/*
	template
	printf '%s\n' 'cluster: one' "controller: {host: $me, address: 198.51.100.1}" 'api: {agent: "127.0.0.1:7611"}' \
		"hosts: [{hosts: [$me], slots: 2, cpus: 1, memory: 128MiB}]" 'power: {idle: 10h, resume_timeout: 2m, suspend_timeout: 10s}' >/etc/berth/slurm.yaml
	berth slurm config --offline --output /etc/slurm
	cp /etc/slurm/*.conf /etc/munge/munge.key /etc/berth/slurm-node/
	echo CgroupPlugin=cgroup/v1 >/etc/berth/slurm-node/cgroup.conf # its plugin for v2 fails in a node
	cat >/etc/berth/slurm-node/node <<'E'
mkdir -p /run/munge /run/key /var/spool/slurmd.$(hostname)
chmod 755 /run/munge
install -m 400 /etc/slurm/munge.key /run/key/key
munged --force --key-file=/run/key/key --socket=/run/munge/munge.socket.2 --pid-file=/run/key/pid --log-file=/run/key/log --seed-file=/run/key/seed
exec slurmd -b -D
E
	systemd-run -q --unit=agent berthd
	systemctl start munge slurmctld
	for _ in $(seq 100); do
		scontrol ping 2>/dev/null | grep -q UP && return
		sleep 0.2
	done
	journalctl -n 60 -u slurmctld -u agent
	return 1
}

# template writes the template of the class.
template() {
	cat >/etc/berth/templates/worker.yaml <<E
node:
  image: host
  command: [/bin/sh, /etc/slurm/node]
  network: [{mode: bridge, parent: sl0, dhcp: true}]
  mounts:
    - {source: /etc/berth/slurm-node, target: /etc/slurm, read_only: true}
    - {source: /srv/slow/batch, target: /srv/slow/batch, map: identity}
${class:+  class: $class}
E
}

# none waits until Slurm has no job any more.
none() {
	for _ in $(seq 600); do
		[ -n "$(squeue -h)" ] || return 0
		sleep 0.2
	done
	squeue >&2
	sinfo -R >&2
	journalctl -n 20 -t berth-slurm -o cat >&2
	journalctl -n 60 -u slurmctld -o cat >&2
	for n in $(berth ls --json 2>/dev/null | grep -o '"name": *"[^"]*"' | cut -d'"' -f4); do berth logs $n 2>&1 | tail -n 20 >&2; done
	return 1
}

# ready has nodes of the class, which a job on both makes.
ready() {
	[ "$(cat /root/class 2>/dev/null)" != "class $class" ] || return 0
	template
	if [ -e /root/class ]; then
		scontrol update NodeName=$me-[01-02] State=POWER_DOWN_FORCE
		for _ in $(seq 300); do
			sinfo -h -N -o %T | grep -qv '^idle~$' || break
			sleep 0.2
		done
	fi
	sbatch --quiet --nodes=2 --chdir=/tmp --output=/dev/null --wrap true
	none
	echo "class $class" >/root/class
}

# submit has both nodes do what work does, by a job each.
submit() {
	common="--thread --direct=1 --ioengine=libaio --iodepth=16 --time_based --runtime=600 --output-format=terse"
	for n in "01 --name=r --filename=/srv/slow/batch/r --rw=randread --bs=64k" "02 --name=w --filename=/srv/slow/batch/w --rw=write --bs=256k"; do
		sbatch --quiet --nodelist=$me-${n%% *} --chdir=/tmp --output=/dev/null --wrap "while :; do :; done & exec fio ${n#* } $common"
	done
}

# cancel ends the jobs.
cancel() {
	scancel --quiet --signal=KILL --full $(squeue -h -o %i)
	none
}
