package packetfilter

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"hyperkube/internal/host/hostjournal"
	"hyperkube/internal/host/nftnl"
)

// recordTables records the tables that do not exist in nf_tables yet and that the program iptables creates for its
// rules. The program never deletes a table. It records nothing if the kernel has no nf_tables, because the tables of the
// legacy variant of iptables are parts of the kernel.
func recordTables(ctx context.Context, journal *hostjournal.Journal) error {
	if journal == nil {
		return nil
	}
	var changes []hostjournal.Change
	for _, family := range []Family{IPv4, IPv6} {
		existing, err := tableNames(ctx, family)
		if errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EINVAL) {
			return nil
		}
		if err != nil {
			return err
		}
		for _, table := range tables() {
			if !slices.Contains(existing, table) {
				changes = append(changes, hostjournal.Change{Kind: hostjournal.Table, Name: fmt.Sprintf("%s %s", family, table)})
			}
		}
	}
	return journal.Record(changes...)
}

// tableNames returns the names of the tables of a family.
func tableNames(ctx context.Context, family Family) ([]Table, error) {
	var found []Table
	err := listUndisturbed(ctx, func() error {
		found = nil
		return nftnl.List(unix.NFT_MSG_GETTABLE, nftFamily(family), nil, func(attributes []byte) {
			for attribute, value := range nftnl.Attributes(attributes) {
				if attribute == unix.NFTA_TABLE_NAME {
					found = append(found, Table(cString(value)))
				}
			}
		})
	})
	return found, err
}

// undoTables removes the tables of recorded changes that contain nothing but empty built-in chains. It keeps the tables
// that another program uses meanwhile.
func undoTables(ctx context.Context, changes []hostjournal.Change) error {
	var errs []error
	for _, c := range changes {
		family, table, ok := strings.Cut(c.Name, " ")
		if !ok {
			errs = append(errs, fmt.Errorf("%q is not the name of a table", c.Name))
		} else if err := removeIfEmpty(ctx, Family(family), Table(table)); err != nil {
			errs = append(errs, fmt.Errorf("removing the empty table %s of iptables: %w", c.Name, err))
		}
	}
	return errors.Join(errs...)
}

// removeIfEmpty removes a table that contains nothing but built-in chains without rules that accept packets.
func removeIfEmpty(ctx context.Context, family Family, table Table) error {
	chains, removable, err := emptyChains(ctx, family, table)
	if errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EINVAL) {
		return nil // the kernel has no nf_tables
	}
	if err != nil || !removable {
		return err
	}
	b := &nftnl.Batch{}
	for _, name := range chains {
		b.Begin(unix.NFT_MSG_DELCHAIN, nftFamily(family), unix.NLM_F_NONREC)
		b.String(unix.NFTA_CHAIN_TABLE, string(table))
		b.String(unix.NFTA_CHAIN_NAME, name)
	}
	b.Begin(unix.NFT_MSG_DELTABLE, nftFamily(family), unix.NLM_F_NONREC)
	b.String(unix.NFTA_TABLE_NAME, string(table))
	// With NLM_F_NONREC the kernel refuses to delete a chain that has rules, or a table that has other objects. So nothing is
	// lost if another program has just created them.
	if err := b.Send(); !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.ENOENT) {
		return err
	}
	return nil
}

// nfAccept is the policy of a chain that accepts the packets that no rule matches.
const nfAccept = 1

// emptyChains returns the chains of a table. removable is false if one of them is not a built-in chain of iptables, or does
// not accept the packets that no rule matches.
func emptyChains(ctx context.Context, family Family, table Table) (names []string, removable bool, err error) {
	err = listUndisturbed(ctx, func() error {
		names, removable = nil, true
		return nftnl.List(unix.NFT_MSG_GETCHAIN, nftFamily(family), nil, func(attributes []byte) {
			var of, name string
			policy := uint32(nfAccept)
			for attribute, value := range nftnl.Attributes(attributes) {
				switch attribute {
				case unix.NFTA_CHAIN_TABLE:
					of = cString(value)
				case unix.NFTA_CHAIN_NAME:
					name = cString(value)
				case unix.NFTA_CHAIN_POLICY:
					if len(value) == 4 {
						policy = binary.BigEndian.Uint32(value)
					}
				}
			}
			if of == string(table) {
				names = append(names, name)
				removable = removable && builtIn(name) && policy == nfAccept
			}
		})
	})
	return names, removable, err
}
