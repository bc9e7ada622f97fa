package kafka

import (
	"cmp"
	"slices"

	"github.com/segmentio/kafka-go/protocol/fetch"
)

// controlAbort is the type of the marker that ends an aborted transaction.
const controlAbort = 0

// abortedTransactions tells which batches of one fetch belong to transactions
// that were aborted. A broker sends them all the same, together with a list of
// the aborted transactions that overlap the fetch: producer and first offset.
//
// Walk the batches in offset order: batch for each one, and end for those that
// hold an abort marker.
type abortedTransactions struct {
	waiting []fetch.ResponseTransaction // not reached yet, by first offset
	open    map[int64]struct{}          // producers whose transaction here is aborted
}

func newAbortedTransactions(list []fetch.ResponseTransaction) *abortedTransactions {
	a := &abortedTransactions{waiting: slices.Clone(list)}
	if len(list) > 0 {
		a.open = make(map[int64]struct{}, len(list))
		slices.SortFunc(a.waiting, func(x, y fetch.ResponseTransaction) int {
			return cmp.Compare(x.FirstOffset, y.FirstOffset)
		})
	}
	return a
}

// batch takes in the transactions that have begun by the end of the batch, and
// reports whether the producer's is an aborted one. It must be called for
// control batches too: where a fetch starts between a transaction's last record
// and its marker, the marker is the first to be seen of it, and a transaction
// that is taken in only later would swallow the producer's next one, which may
// have committed.
func (a *abortedTransactions) batch(last, producer int64) bool {
	for len(a.waiting) > 0 && a.waiting[0].FirstOffset <= last {
		a.open[a.waiting[0].ProducerID] = struct{}{}
		a.waiting = a.waiting[1:]
	}
	_, aborted := a.open[producer]
	return aborted
}

// end ends the producer's aborted transaction.
func (a *abortedTransactions) end(producer int64) { delete(a.open, producer) }
