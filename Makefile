# Berth. `make help` lists the targets.
GO           ?= go
PREFIX       ?= /usr/local
VERSION      ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
LINT_VERSION := v2.15.0
LINT         := build/tools/golangci-lint-$(LINT_VERSION)
DEADCODE_VERSION := v0.52.0
DEADCODE     := build/tools/deadcode-$(DEADCODE_VERSION)
PROGRAMS     := $(notdir $(wildcard cmd/berth*))
BUILD        ?= build
LDFLAGS      := -s -w -X berth/internal/sys/version.Berth=$(VERSION)

# Go from the official tarball is often not in root's PATH. Man pages carry the date of the last commit.
export PATH              := $(PATH):/usr/local/go/bin
export SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || date +%s)

.PHONY: help
help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' Makefile | expand -t 14

.PHONY: build
build: ## build/berth, and the programs beside it: static, with their version
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o $(BUILD)/ $(PROGRAMS:%=./cmd/%)
	scripts/build-preload $(BUILD)

.PHONY: setup
setup: ## install what a fresh Debian 12 lacks (as root)
	@scripts/setup

.PHONY: demo
demo: setup build ## a node with its own identity and limits, and what it costs, on this machine (as root)
	@scripts/demo

# Packages that measure, or that look for what is left on the host, would disturb each other: the packages in test/alone run one at a time.
# test/tiers names the tests that `make test` leaves out; docs/TESTING.md explains the tiers.
TESTRUN = $(GO) run ./tools/testrun $(if $(SKIPS),-skips $(SKIPS)) $(if $(CLOCK),-clock $(CLOCK)) -alone test/alone -tiers test/tiers
MINUTES = 6m
SUBJECTS = net storage limits site

.PHONY: test
test: setup ## all tests that need nothing but this machine (as root): about 13 minutes on 2 cores
	@$(TESTRUN) -race -products -rerun test/rerun -package-clock $(MINUTES) -json build/test.json -result build/test.txt ./...

.PHONY: test-all
test-all: setup ## the same, and each walk to its end: docs/evidence/test-all.txt
	@BERTH_WALK=all $(TESTRUN) -race -products -rerun test/rerun -package-clock 60m -result docs/evidence/test-all.txt ./...

.PHONY: unreached
unreached: setup ## the functions of internal/ that make test does not reach, and why: docs/evidence/unreached.txt (40 minutes; tests of what programs print fail here)
	@rm -rf build/reach && mkdir -p build/reach && chmod 1777 build/reach
	-@GOFLAGS='-cover -coverpkg=berth/internal/...,berth/cmd/...' GOCOVERDIR=$(CURDIR)/build/reach $(TESTRUN) -products -package-clock 30m ./...
	@$(GO) tool covdata func -i=build/reach >build/reach.txt
	@$(GO) run ./tools/unreached <build/reach.txt >docs/evidence/unreached.txt

.PHONY: test-fast
test-fast: ## the tests that take no time
	@$(TESTRUN) -short ./...

.PHONY: test-smoke
test-smoke: ## one machine of the lab: limits, a virtual function, the keeper, nothing left (5 minutes)
	@$(TESTRUN) -products -tier smoke -package-clock 10m -result build/test-smoke.txt ./test/lab

.PHONY: test-lab
test-lab: setup-lab ## tests in emulated machines, and with real software: SUBJECT=net|storage|limits|site|all (20 minutes each)
	@code=0; for subject in $(if $(filter-out all,$(SUBJECT)),$(SUBJECT),$(SUBJECTS)); do \
		$(TESTRUN) -race -products -tier lab -subject $$subject -package-clock 60m -json build/test-lab-$$subject.json -result build/test-lab-$$subject.txt ./... || code=1; \
	done; exit $$code
	@[ "$(or $(SUBJECT),all)" != all ] || cat $(SUBJECTS:%=build/test-lab-%.txt) >docs/evidence/test-lab.txt

.PHONY: test-measured
test-measured: setup-lab ## tests that measure: shares, rates, latencies; on a machine that does nothing else
	@$(TESTRUN) -products -tier measured -package-clock 60m -json build/test-measured.json -result build/test-measured.txt ./...
	@cp build/test-measured.txt docs/evidence/test-measured.txt

.PHONY: setup-lab
setup-lab:
	@scripts/setup --lab

.PHONY: gate
gate: setup lint-tools ## before a commit goes to main: what its change can have broken, in ten minutes; noted in build/gate
	@$(GO) run ./tools/gate $(if $(BASE),-base $(BASE))

.PHONY: lab
lab: ## a shell in a virtual machine with an SR-IOV card, cgroup v2 and systemd, berth in it (no such card? try it here)
	@$(GO) run ./test/lab/shell

.PHONY: fuzz
fuzz: ## each fuzz target for a minute (FUZZTIME=1m)
	@scripts/fuzz

.PHONY: fmt
fmt: $(LINT) ## format the source
	$(LINT) fmt ./...

.PHONY: vet
vet: ## go vet, with and without fault points
	$(GO) vet ./...
	$(GO) vet -tags berthfault ./...

.PHONY: lint
lint: $(LINT) $(DEADCODE) ## golangci-lint, as .golangci.yml says (LINTFLAGS=--fix mends what it can); functions that nothing calls
	$(LINT) run $(LINTFLAGS) ./...
	@for tags in "" berthfault; do \
		dead=$$($(DEADCODE) -test -tags "$$tags" ./...) || exit 1; \
		[ -z "$$dead" ] || { echo "$$dead"; exit 1; }; done

.PHONY: lint-tools
lint-tools: $(LINT) $(DEADCODE)

$(LINT):
	GOBIN=$(CURDIR)/build/tools CGO_ENABLED=0 $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(LINT_VERSION)
	mv build/tools/golangci-lint $@

$(DEADCODE):
	GOBIN=$(CURDIR)/build/tools CGO_ENABLED=0 $(GO) install golang.org/x/tools/cmd/deadcode@$(DEADCODE_VERSION)
	mv build/tools/deadcode $@

.PHONY: bench-start
bench-start: setup build ## how fast nodes start, beside plain runtimes; OLD=PATH: beside an older berth, interleaved
	@scripts/bench-start $(if $(OLD),-old $(OLD) -json build/bench-start-old.json)

.PHONY: bench-nodes
bench-nodes: setup build ## 2,000 nodes with an interface on this host: made, listed, removed, nothing left (NODES=2000)
	$(GO) run ./tools/benchnodes -berth build/berth -n $(or $(NODES),2000) -json build/bench-nodes.json

.PHONY: bench-agents
bench-agents: ## 200 agents against one etcd: docs/evidence/agents (2 minutes; AGENTS=200)
	$(GO) test ./test/agents -count=1 -v -run TestAgents -agents $(or $(AGENTS),200) -rest 20s -json $(CURDIR)/docs/evidence/agents/$(or $(AGENTS),200).json

.PHONY: bench-slurm
bench-slurm: ## one slurmctld and up to 500 slurmds that come and go: docs/evidence/slurm-growth (10 minutes if idle; NODES="50 100 200 500")
	@scripts/bench-slurm

.PHONY: bench-slurm-config
bench-slurm-config: ## how long Slurm's files take for 100 hosts with 20 slots each, and berth slurm config with real agents
	$(GO) test ./internal/site/slurm/slurmconf -run '^$$' -bench Make -count=5
	BERTH_MEASURED=1 $(GO) test ./test/slurmconf -count=1 -v

.PHONY: bench-slurm-start
bench-slurm-start: ## 100 jobs on nodes made for them, one after another, and Berth's part of that: docs/evidence/slurm-start.json (20 minutes)
	BERTH_MEASURED=1 $(GO) test -count=1 -v -timeout 60m -run TestReservedAddresses ./test/slurm -start-json $(CURDIR)/docs/evidence/slurm-start.json

.PHONY: bench-slurm-lab
bench-slurm-lab: setup ## Slurm's jobs on two emulated hosts with SR-IOV, and each failure: docs/evidence/slurm-lab.json (40 minutes)
	BERTH_EVIDENCE=$(CURDIR)/docs/evidence BERTH_WALK=all $(GO) test -count=1 -v -timeout 120m -run 'TestSlurm$$' ./test/lab

.PHONY: slurm-walk
slurm-walk: ## 100 failures below Slurm's jobs: docs/evidence/slurm-walk/100.json (40 minutes; EVENTS=100)
	BERTH_WALK=20261 $(GO) test -count=1 -v -timeout 120m -run 'TestWalk$$' ./test/slurm -walk-events $(or $(EVENTS),100) -walk-json $(CURDIR)/docs/evidence/slurm-walk/$(or $(EVENTS),100).json

.PHONY: evidence
evidence: setup build ## the statistics that verdicts rest on: known difference, null rows, the anomaly (two hours)
	@scripts/evidence

# The emulated disk's file lies in memory: on this host's disk, its write-back held single trials up for 1 to 2 s.
MEMORY_DISK = TMPDIR=/dev/shm GOTMPDIR=/var/tmp

.PHONY: headline
headline: setup ## a storage service beside batch nodes on a slow disk, in the lab: docs/evidence/headline.* (70 minutes; HEADLINE=-resume goes on)
	$(MEMORY_DISK) $(GO) run ./test/lab/headline/run $(if $(filter -resume,$(HEADLINE)),,-seed 20261) $(HEADLINE) -page docs/isolation.md -out docs/evidence/headline
	$(GO) run ./tools/readme

.PHONY: headline-slurm
headline-slurm: setup ## the same with jobs of Slurm: docs/evidence/headline-slurm.* (75 minutes; ROUNDS=20; HEADLINE=-resume goes on)
	$(MEMORY_DISK) $(GO) run ./test/lab/headline/run $(if $(filter -resume,$(HEADLINE)),-resume,-seed 20261 -rounds $(or $(ROUNDS),20) -arms alone,slurm,slurm-again,slurm-protect) -out docs/evidence/headline-slurm

.PHONY: shares
shares: setup ## what nodes got of a disk by weights and rates, 30 windows a row: docs/evidence/weights-*.json, sync-weights (an hour)
	@scripts/shares

.PHONY: bench-gateway
bench-gateway: setup build ## what gateways cost: bind on this machine's disk, all of them in the lab: docs/evidence/gateway-*.json (45 minutes)
	@scripts/bench-gateway

.PHONY: bench-sync
bench-sync: setup build ## VNode Sync: rates over file servers, a foreground, costs: docs/evidence/sync*.json; the library with XRootD: sync-cost.txt (2.5 hours)
	@scripts/bench-sync

.PHONY: bench-sync-rates
bench-sync-rates: setup build ## VNode Sync: a node's rates through real file servers, and what a neighbour keeps: docs/evidence/sync-rates (an hour)
	@scripts/bench-sync rates

.PHONY: readme-disk
readme-disk: setup build ## the disk table of docs/cost.md: three runs of seeds fixed before, docs/evidence/readme-disk-* (10 minutes)
	@scripts/readme-disk

.PHONY: readme
readme: ## README's figures and the disk table of docs/cost.md, from what docs/evidence has
	$(GO) run ./tools/readme

.PHONY: readme-picture
readme-picture: setup build ## README's picture: a session with examples/worker.yaml on this machine (as root)
	@scripts/readme-picture

.PHONY: docs
docs: build ## man pages and completions, in build/
	$(GO) run ./tools/gendocs build/man
	mkdir -p build/completion
	for s in bash zsh fish; do build/berth completion $$s > build/completion/berth.$$s || exit 1; done

.PHONY: install
install: AT = $(DESTDIR)$(PREFIX)
install: docs ## install below PREFIX (and DESTDIR)
	install -d $(AT)/bin $(AT)/share/man/man1 $(addprefix $(AT)/share/doc/berth/,examples findings picture) $(AT)/lib/systemd/system
	install -m755 $(PROGRAMS:%=$(BUILD)/%) $(AT)/bin
	install -Dm644 $(BUILD)/berth-sync.so $(AT)/lib/berth/berth-sync.so
	for act in resume suspend fail prolog epilog; do ln -sf ../../bin/berth-site $(AT)/lib/berth/slurm-$$act || exit 1; done
	install -m644 $(BUILD)/man/*.1 packaging/man/*.1 $(AT)/share/man/man1
	install -m644 README.md CHANGELOG.md $(filter-out docs/README.md,$(wildcard docs/*.md)) $(AT)/share/doc/berth
	install -m644 docs/README.md $(AT)/share/doc/berth/index.md
	install -m644 docs/findings/*.md $(AT)/share/doc/berth/findings
	install -m644 docs/picture/*.svg $(AT)/share/doc/berth/picture
	scripts/links $(AT)/share/doc/berth
	install -m644 examples/*.yaml $(AT)/share/doc/berth/examples
	install -Dm644 packaging/berthd.yaml $(AT)/share/doc/berthd/examples/berthd.yaml
	install -Dm644 packaging/alerts.yaml $(AT)/share/berthd/alerts.yaml
	install -Dm644 packaging/dashboard.json $(AT)/share/berthd/dashboard.json
	sed 's|@PREFIX@|$(PREFIX)|g' packaging/berthd.service > $(AT)/lib/systemd/system/berthd.service
	install -Dm644 $(BUILD)/completion/berth.bash $(AT)/share/bash-completion/completions/berth
	install -Dm644 $(BUILD)/completion/berth.zsh $(AT)/share/zsh/site-functions/_berth
	install -Dm644 $(BUILD)/completion/berth.fish $(AT)/share/fish/vendor_completions.d/berth.fish

.PHONY: uninstall
uninstall: AT = $(DESTDIR)$(PREFIX)
uninstall: ## remove what make install put below PREFIX (and DESTDIR)
	rm -rf $(addprefix $(AT)/,$(PROGRAMS:%=bin/%) lib/berth share/berthd share/doc/berth share/doc/berthd share/bash-completion/completions/berth \
		share/zsh/site-functions/_berth share/fish/vendor_completions.d/berth.fish lib/systemd/system/berthd.service)
	rm -f $(AT)/share/man/man1/berth.1 $(AT)/share/man/man1/berth-*.1 $(AT)/share/man/man1/berthd.1

.PHONY: deb
deb: docs ## Debian packages berth and berthd: build/deb
	@scripts/deb build build/deb $(VERSION)

.PHONY: clean
clean: ## remove what was built
	rm -rf build
