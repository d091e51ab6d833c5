package packetfilter

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"hyperkube/internal/host/hostjournal"
	"hyperkube/internal/host/nftnl"
)

// Mode is how rules are written.
type Mode string

// IPTables and NFTables are the modes. Auto is only a setting: Select replaces it with one of the others.
const (
	Auto     Mode = "auto"
	IPTables Mode = "iptables"
	NFTables Mode = "nftables"
)

// Modes returns all values of the setting, for help texts.
func Modes() []Mode { return []Mode{Auto, IPTables, NFTables} }

// Validate returns an error unless m is one of Modes or empty, which means Auto.
func (m Mode) Validate() error {
	if m == "" || slices.Contains(Modes(), m) {
		return nil
	}
	return fmt.Errorf("unsupported value %q: supported values: %q", m, Modes())
}

// Select returns the mode to use for a setting. For Auto and an empty setting this is IPTables if the program is
// installed and creates a chain, and otherwise NFTables. So hyperkube uses the same tables as the firewalls of most
// machines, whose rules then see each other. It records the tables that the program creates in the journal, which may be
// nil. It returns an error if the machine supports neither, or not the one that is set.
func (m Mode) Select(ctx context.Context, journal *hostjournal.Journal) (Mode, error) {
	if err := m.Validate(); err != nil {
		return "", err
	}
	var withIPTables error
	if m != NFTables {
		if err := recordTables(ctx, journal); err != nil {
			return "", err
		}
		if withIPTables = tryIPTables(ctx); withIPTables == nil {
			return IPTables, nil
		}
		if m == IPTables {
			return "", withIPTables
		}
	}
	if err := CheckNFTables(); err != nil {
		return "", errors.Join(withIPTables, err)
	}
	return NFTables, nil
}

// SelectFor is like Select, but for Auto and an empty setting it returns the mode in which chains that match one of the
// patterns exist in the network namespace of the calling thread, if the kernel reports any. It then runs no program, so it
// is for programs that start for each request.
func (m Mode) SelectFor(ctx context.Context, patterns []Chain, journal *hostjournal.Journal) (Mode, error) {
	if m != Auto && m != "" {
		return m.Select(ctx, journal)
	}
	for _, mode := range []Mode{NFTables, IPTables} {
		for _, family := range []Family{IPv4, IPv6} {
			if found, err := mode.inKernel(family, patterns); err == nil && found {
				return mode, nil
			}
		}
	}
	return m.Select(ctx, journal)
}

// trial is an input of iptables-restore that creates and removes a chain in the tables that need modules of the kernel.
const trial = "*nat\n:HK-TRIAL - [0:0]\n-X HK-TRIAL\nCOMMIT\n*filter\n:HK-TRIAL - [0:0]\n-X HK-TRIAL\nCOMMIT\n"

// tryIPTables returns an error if iptables is not installed or cannot create a chain.
func tryIPTables(ctx context.Context) error {
	if err := (iptables{}).restore(ctx, IPv4, trial); err != nil {
		return fmt.Errorf("creating a chain with iptables: %w", err)
	}
	return nil
}

// CheckNFTables returns an error if the kernel has no nf_tables.
func CheckNFTables() error {
	if err := nftnl.List(unix.NFT_MSG_GETTABLE, unix.NFPROTO_IPV4, nil, func([]byte) {}); err != nil {
		return fmt.Errorf("listing tables of nftables, which needs the kernel option CONFIG_NF_TABLES: %w", err)
	}
	return nil
}
